package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes of every command.
const (
	exitDone    = 0
	exitFailed  = 1
	exitUsage   = 2 // wrong usage: nothing was tried
	exitRefused = 3 // it would have destroyed something, or the other side said no
)

// exitError gives an error its exit code. An error without one is exitFailed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// usageError says that a command was called wrongly.
func usageError(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// refusedError says that nothing was done because it must not be.
func refusedError(format string, args ...any) error {
	return &exitError{exitRefused, fmt.Errorf(format, args...)}
}

// interrupts are the signals that end a command in order: Ctrl-C, SIGTERM, and a terminal that is closed, unless that
// is ignored, as under nohup.
func interrupts() []os.Signal {
	s := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		s = append(s, syscall.SIGHUP)
	}
	return s
}

// run is main without the process: it parses args, runs the command and returns the exit code. The first
// Ctrl-C ends ctx, so that a command can finish cleanly; the second one kills.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), interrupts()...)
	defer stop()
	go func() {
		<-ctx.Done()
		// A shell that goes and its terminal both say so: the second word of it must not kill what the first has ended.
		signal.Ignore(syscall.SIGHUP)
		stop()
	}()

	root := newRootCommand()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitDone
	}
	var coded *exitError
	code := exitFailed
	if errors.As(err, &coded) {
		code = coded.code
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = errors.New("interrupted")
	}
	fmt.Fprintf(stderr, "kingpost: %s\n", printable(err.Error()))
	if code == exitUsage {
		fmt.Fprintf(stderr, "\n%s\nSee %s --help.\n", cmd.UseLine(), cmd.CommandPath())
	}
	return code
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "kingpost",
		Short: "Build node images, raise a mesh from one, and operate it",
		Long: `Kingpost builds one immutable node image with a mesh's own programs in it, puts it on
machines, and raises a mesh from it.`,
		Example: `  kingpost build images/vm.yaml
  kingpost raise 192.168.1.20 --mesh home
  kingpost status`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usageError("a command is missing")
		},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &exitError{exitUsage, err} })
	root.PersistentFlags().String(contextFlag, "", "the context to use instead of the current one")
	_ = root.RegisterFlagCompletionFunc(contextFlag, completeContexts)
	root.AddCommand(commands()...)
	root.SetHelpCommand(newHelpCommand())
	root.InitDefaultHelpCmd() // both here, so that wrong usage of them counts as such
	root.InitDefaultCompletionCmd()
	completionExamples(root)
	usageErrors(root)
	return root
}

func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "Show what a command does", Example: "  kingpost help module push",
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return usageError("there is no command %q", strings.Join(args, " "))
			}
			return about.Help()
		},
	}
}

// completionExamples gives the completion commands, which come with cobra, the example that every command has.
func completionExamples(root *cobra.Command) {
	for _, c := range root.Commands() {
		if c.Name() != "completion" {
			continue
		}
		c.Example = "  kingpost completion bash > /etc/bash_completion.d/kingpost"
		for _, shell := range c.Commands() {
			shell.Example = "  kingpost completion " + shell.Name()
		}
	}
}

// usageErrors makes every refusal of arguments by cmd and those below it a wrong usage.
func usageErrors(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return &exitError{exitUsage, err}
			}
			return nil
		}
	}
	if cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.Args = cobra.ArbitraryArgs
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError("%s needs a command", cmd.CommandPath())
			}
			return usageError("%s has no command %q", cmd.CommandPath(), args[0])
		}
	}
	for _, sub := range cmd.Commands() {
		usageErrors(sub)
	}
}

package supervise

import "time"

// When failures are retried and when they are not any more. The counter goes up with each run that
// failed and back to zero only after a run was well for resetAfter, never by time alone: so the limit is
// reached whatever the delays are. With these, a resource that fails at once is held after about two minutes.
const (
	maxFailures = 10
	firstDelay  = 250 * time.Millisecond
	maxDelay    = 60 * time.Second
	resetAfter  = 60 * time.Second

	// settleTime is how long a resource without a health check must run to count as good.
	settleTime = 5 * time.Second
	// maxTrialRuns is how often a new spec may end before it was healthy in a handover.
	maxTrialRuns = 3
	// sourceDelay is the first wait after a failed fetch; it doubles up to maxSourceDelay.
	sourceDelay    = 500 * time.Millisecond
	maxSourceDelay = 5 * time.Second

	// patience is after how many failed fetches the last good spec is started instead.
	patience = 5

	// exitRecordLimit is how long PID 1 may take to write the record of a process that has ended.
	exitRecordLimit = 5 * time.Second
	// killLimit bounds the end of a cgroup that was killed.
	killLimit = 10 * time.Second
)

// delay is the wait after the n-th failure in a row.
func delay(n int) time.Duration {
	d := firstDelay
	for ; n > 1 && d < maxDelay; n-- {
		d *= 2
	}
	return min(d, maxDelay)
}

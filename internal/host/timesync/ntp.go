package timesync

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/beevik/ntp"
)

// askTime bounds one question.
const askTime = 5 * time.Second

// NTP asks servers by SNTP (RFC 5905, client mode). now is the clock that is to be corrected.
func NTP(now func() time.Time) func(ctx context.Context, server string) (Sample, error) {
	return func(ctx context.Context, server string) (Sample, error) {
		ctx, cancel := context.WithTimeout(ctx, askTime)
		defer cancel()
		var stop func() bool
		r, err := ntp.QueryWithOptions(server, ntp.QueryOptions{
			Timeout: askTime, GetSystemTime: now,
			Dialer: func(_, remote string) (net.Conn, error) {
				c, err := (&net.Dialer{}).DialContext(ctx, "udp", remote)
				if err == nil {
					stop = context.AfterFunc(ctx, func() { c.Close() })
				}
				return c, err
			},
		})
		if stop != nil {
			stop()
		}
		if err == nil {
			err = r.Validate() // stratum, leap, dispersion, a server that wants to be left alone
		}
		if err != nil {
			return Sample{}, fmt.Errorf("ask the time server %s: %w", server, err)
		}
		return Sample{Offset: r.ClockOffset, Distance: r.RootDistance}, nil
	}
}

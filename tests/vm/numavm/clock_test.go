package numavm

import (
	"testing"
	"time"
)

func TestClockIsFast(t *testing.T) {
	for _, c := range []struct {
		uptime float64
		since  time.Duration
		want   bool
	}{
		{7.9, 9 * time.Second, false},
		{23.5, 34400 * time.Millisecond, false}, // a busy host
		{10.4, 10 * time.Second, false},         // all but the kernel took no time at all
		{68, 8 * time.Second, true},             // 2596 MHz taken for 305
		{13, 9 * time.Second, true},
	} {
		if got := clockIsFast(c.uptime, c.since); got != c.want {
			t.Errorf("%v s of the guest in %s: %v, want %v", c.uptime, c.since, got, c.want)
		}
	}
}

package numavm

import "time"

// clockIsFast tells whether a guest whose kernel has run for uptime seconds by its own clock counts more of them than have
// passed since QEMU was started. One that runs slow cannot be told from one that had to wait for a CPU, and does no harm.
func clockIsFast(uptime float64, since time.Duration) bool {
	return uptime > 1.2*since.Seconds()+1
}

// Package kernel tests the settings of a node on the kernel that it runs on: each
// changes what its file reads and is back after it, byte for byte, through the
// ledger, also when the program that sets it is killed. It puts back what was
// there even when a test fails, and leaves out what this machine does not have.
package kernel

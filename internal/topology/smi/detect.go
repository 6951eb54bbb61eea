package smi

import "bytes"

// Detect tells whether a text can be one that Parse reads: it has no null byte,
// and somewhere a word that all of them have. What it is, Parse finds out.
func Detect(text []byte) bool {
	return !bytes.ContainsRune(text[:min(len(text), 1<<12)], 0) &&
		(bytes.Contains(text, []byte("GPU")) || bytes.Contains(text, []byte("NUMA node")) || bytes.Contains(text, []byte(" cpus:")))
}

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// mpsControl is the name of MPS's control daemon as the kernel keeps it, which is
// 15 bytes of nvidia-cuda-mps-control; its servers are called the same.
const mpsControl = "nvidia-cuda-mps"

// mpsServers says which of this machine's processes are MPS's.
func mpsServers(root string) []string {
	names, err := filepath.Glob(filepath.Join(root, "proc", "[0-9]*", "comm"))
	if err != nil {
		return []string{err.Error()}
	}
	var pids []string
	for _, name := range names {
		// One that cannot be read has ended in between.
		if text, err := os.ReadFile(name); err == nil && strings.TrimSpace(string(text)) == mpsControl {
			pid := filepath.Base(filepath.Dir(name))
			if _, err := strconv.Atoi(pid); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	if len(pids) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("MPS is on (pid %s): GPUs may be shared by programs that do not see each other", strings.Join(pids, ", "))}
}

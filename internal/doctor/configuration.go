package doctor

import "context"

// configuration: gputune.toml can be read.
func configuration(_ context.Context, h *Host) []Finding {
	if h.Config != nil {
		return []Finding{bad("mend gputune.toml: until then options of jobs are not carried out, and the defaults bind", "%v", h.Config)}
	}
	return []Finding{ok("gputune.toml can be used")}
}

// slurmConf: Slurm's own files can be read, without which nobody knows what tasks
// are held to.
func slurmConf(_ context.Context, h *Host) []Finding {
	switch {
	case !h.there(h.SlurmConf):
		return []Finding{bad("set SLURM_CONF, or run this on a node with Slurm", "%s is not there", h.SlurmConf)}
	case h.Node.Unread != nil:
		return []Finding{bad("mend the file: slurmd passes over what it cannot read, too", "%v", h.Node.Unread)}
	}
	return []Finding{ok("%s was read", h.SlurmConf)}
}

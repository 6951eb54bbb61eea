package job

import (
	"context"
	"slices"

	"gputune/conf"
	"gputune/internal/action"
	"gputune/internal/option"
	"gputune/internal/placement"
	"gputune/internal/slurm"
)

// bindVariable has the --gpu-numa-bind that a job was submitted with, as Slurm
// itself hands every plugin's options to Prolog and Epilog. That of an srun inside
// the job is not in it, nor the default of plugstack.conf; and there is none where
// another plugin has a job_prolog of its own: Slurm leaves options out then.
const bindVariable = "SPANK__SLURM_SPANK_OPTION_gputune_gpu_numa_bind"

// dropsBeforeBind tells whether the site wants the page cache dropped for the job,
// if it turns out to have the node alone: it has GPUs, and mem=bind.
func (h *Host) dropsBeforeBind() bool {
	value, given := h.getenv(bindVariable)
	if !given || h.SiteError != nil || h.Site.DropCaches.BeforeBind != conf.BeforeBindPage {
		return false
	}
	bind, err := option.ParseBind(value, h.Site.NUMABind.Items.Bind)
	return err == nil && bind.On && bind.Policy.Mem == placement.MemBind
}

// beforeBind drops the page cache for a job whose memory is bound to the nodes of
// its GPUs, where the site wants that and the job has the node for itself, unless
// one of its options has done it. It is no part of what the job asked for: nothing
// fails for it.
func (h *Host) beforeBind(ctx context.Context, job slurm.Job, options []*asked) {
	if !h.dropsBeforeBind() || !job.HasGPUs() || slices.ContainsFunc(options, func(a *asked) bool { return a.Dropped != nil }) {
		return
	}
	s := h.scene(job, nil, nil)
	if n, err := s.read(); err != nil {
		h.say("job %s: drop_caches.before_bind: %v", job.ID, err)
		return
	} else if shared := n.Shared(job); shared != nil {
		h.say("job %s: drop_caches.before_bind: not dropped: %v", job.ID, shared)
		return
	}
	host := action.Host{Root: string(h.Site.Paths.Machine), Now: h.Now}
	dropped, err := host.DropCaches(ctx, option.CachesPage, h.syncFor(ctx))
	if err != nil {
		h.say("job %s: drop_caches.before_bind: %v", job.ID, err)
		return
	}
	h.say("job %s: drop_caches.before_bind: %v", job.ID, dropped)
}

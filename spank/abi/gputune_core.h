/*
 * What the C shim (spank_gputune.so) and the Go core (libgputune.so) share: one
 * page of memory, mapped MAP_SHARED by the shim before slurmstepd forks the
 * tasks, and the core's four exported functions.
 *
 * The shim fills the request, the core fills the rest, the forked children read
 * it. Both sides come from one build; GPUTUNE_ABI is checked all the same, since
 * the core's path can be set in plugstack.conf.
 */
#ifndef GPUTUNE_CORE_H
#define GPUTUNE_CORE_H

#include <stdint.h>

#define GPUTUNE_ABI 5

#define GPUTUNE_CPU_WORDS 128 /* 8192 CPUs, the kernel's largest NR_CPUS */
#define GPUTUNE_NODE_WORDS 16 /* 1024 nodes, the kernel's largest MAX_NUMNODES */
#define GPUTUNE_MAX_GPUS 64   /* one bit each in a uint64_t */
#define GPUTUNE_MAX_MIG 8     /* MIG devices of one GPU: seven with NVIDIA's own limit */
#define GPUTUNE_MAX_ORDER 512 /* Slurm's gres indices: with MIG several for each GPU */
#define GPUTUNE_PATH 512
#define GPUTUNE_TEXT 4096
#define GPUTUNE_OPTION 1024
#define GPUTUNE_HANDOUT 65536 /* what mig.Handout takes */
#define GPUTUNE_VARIABLES 8192 /* the site's, for a task */

/* Values of gputune_page.state. */
enum {
	GPUTUNE_UNBOUND = 0, /* the core was not asked yet */
	GPUTUNE_OPEN = 1,    /* options, machine and GPUs are known */
	GPUTUNE_BOUND = 2,   /* every task's slot and every GPU's share are filled */
	GPUTUNE_FAILED = 3,  /* error says why nothing is bound */
	GPUTUNE_OFF = 4      /* the option says that nothing is to be bound */
};

enum { GPUTUNE_MEM_NONE = 0, GPUTUNE_MEM_PREFER = 1, GPUTUNE_MEM_BIND = 2, GPUTUNE_MEM_INTERLEAVE = 3 };
enum { GPUTUNE_GPUS_AUTO = 0, GPUTUNE_GPUS_ALL = 1, GPUTUNE_GPUS_LOCAL = 2 };
enum { GPUTUNE_REPORT_WARNINGS = 0, GPUTUNE_REPORT_VERBOSE = 1, GPUTUNE_REPORT_QUIET = 2 };

/* One GPU of the node, in the order of PCI addresses. */
struct gputune_gpu {
	uint64_t cpus[GPUTUNE_CPU_WORDS]; /* its share; zero: the CPUs are left alone */
	uint64_t near[GPUTUNE_CPU_WORDS]; /* all CPUs of its local nodes */
	uint64_t mems[GPUTUNE_NODE_WORDS];
	uint64_t nodes[GPUTUNE_NODE_WORDS]; /* its local nodes, zero: not known */
	int32_t fd;                         /* O_PATH on its device node while the probe runs, else -1 */
	uint32_t model;                     /* equal for GPUs of one model */
	char device[GPUTUNE_PATH];
	char pci[32];
	char uuid[64];
	char mig[GPUTUNE_MAX_MIG][64];
	char warnings[1024]; /* of its share, a line each */
	char variables[GPUTUNE_VARIABLES]; /* for a task that has this GPU alone */
};

/* One task of this node. */
struct gputune_task {
	/* by the shim, in slurm_spank_task_post_fork */
	int32_t pid;
	int32_t probe_errno; /* why the probe could not tell, 0: access is right */
	uint64_t access;     /* GPUs that a process in the task's cgroup may open */

	/* by the core */
	char join[GPUTUNE_PATH];  /* cgroup.procs that the probe joins, "": no cgroup to join */
	char visible[1024];       /* its MIG devices, for CUDA_VISIBLE_DEVICES, "": as Slurm set it */
	uint64_t sees;            /* GPUs that the task may see */
	uint64_t gpus;            /* GPUs that it is bound to, of those */
	uint32_t by_environment;  /* its own CUDA_VISIBLE_DEVICES decides among sees */
	uint64_t cpus[GPUTUNE_CPU_WORDS];   /* zero: the CPUs are left alone */
	uint64_t mems[GPUTUNE_NODE_WORDS];  /* zero: the memory policy is left alone */
	char warnings[GPUTUNE_TEXT];        /* what could not be had as asked, a line each */
	char notes[1024];                   /* what verbose tells besides, a line each */
	uint64_t variables_gpus;            /* the GPUs that variables are for; with others, the task takes the GPU's or the page's */
	char variables[GPUTUNE_VARIABLES];
};

struct gputune_page {
	uint32_t abi; /* GPUTUNE_ABI of the shim */

	/* request, by the shim */
	char node[256];            /* SLURMD_NODENAME of slurmstepd itself */
	char config[GPUTUNE_PATH]; /* gputune.toml, "": the built-in place */
	char slurm_conf[GPUTUNE_PATH]; /* SLURM_CONF of slurmstepd itself */
	char option[GPUTUNE_OPTION]; /* the option's value, "" given bare */
	char mig[GPUTUNE_HANDOUT];   /* <run>/jobs/<job>.mig, "": the job's GPUs are not split */
	char environment[16384];   /* NAME=VALUE strings of the step, each ended by NUL */
	uint32_t environment_size; /* bytes used of it */
	uint32_t tasks;            /* on this node */
	uint32_t job, step;        /* Slurm's ids */
	uint32_t given;            /* 1: the user gave the option, 0: it is the site's default */
	uint32_t no_swap;          /* 1: none of the job's memory is to be swapped out */
	uint64_t memory_mib;       /* that the step was given on this node, 0: not known */

	/* answer, by the core */
	uint32_t state;
	uint32_t strict;
	uint32_t report;
	uint32_t mem;      /* policy asked for */
	uint32_t pairing;  /* gpus= */
	uint32_t gpus;     /* number of entries in gpu */
	uint32_t orders;   /* number of entries in order */
	int32_t order[GPUTUNE_MAX_ORDER]; /* position in gpu for each of Slurm's gres indices, -1 unknown */
	uint64_t step_gpus;              /* GPUs of the step */
	char keep_cpus[256]; /* the user's own --cpu-bind, which wins, "": none */
	char keep_mems[256]; /* the user's own --mem-bind, which wins, "": none */
	/* Variables that the site wants tasks to have: NAME=VALUE strings, each ended by NUL and the last one by two.
	 * One without = is not set, because its value is not known. Here for a task whose place is not known; else in
	 * gpu and task. */
	char variables[GPUTUNE_VARIABLES];
	char cautions[GPUTUNE_TEXT]; /* what the user should know and no task fails for, a line each */
	char swap[1024];             /* why the job's memory can be swapped out all the same, "": it cannot, or no_swap is 0 */
	char follow_file[GPUTUNE_PATH]; /* to be removed when the step ends, "": none */
	char not_followed[512];         /* why nobody follows the workers though that was asked for, "": all is well */
	char error[GPUTUNE_TEXT];
	char log[GPUTUNE_TEXT]; /* for slurmd's log, a line each */

	struct gputune_gpu gpu[GPUTUNE_MAX_GPUS];
	struct gputune_task task[]; /* by local id */
};

/* The core's exports. They return 0, or -1 with page->error set (limit: page->swap); they never
 * raise a signal, never leave a goroutine behind and never touch the
 * environment. Only slurmstepd's parent process may call them, never a child
 * that it forked. */
typedef int gputune_call(struct gputune_page *page);

#define GPUTUNE_CALL_LIMIT "gputune_core_limit"   /* no_swap and task[0].pid -> the job's cgroup, swap */
#define GPUTUNE_CALL_OPEN "gputune_core_open"     /* request -> options, machine, gpu[].{fd,device,pci,…} */
#define GPUTUNE_CALL_LOCATE "gputune_core_locate" /* task[].pid -> task[].join */
#define GPUTUNE_CALL_BIND "gputune_core_bind"     /* task[].access -> everything, applied to the tasks */

#endif

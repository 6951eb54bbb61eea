/*
 * What the files of the fake libnvidia-ml.so.1 share. ../fakenvml.go describes
 * the files it reads and what of its answers no hardware was asked.
 */
#ifndef FAKENVML_FAKE_H
#define FAKENVML_FAKE_H

#define NVML_NO_UNVERSIONED_FUNC_DEFS /* define the old and the new symbols side by side */
#include <nvml.h>

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <time.h>

#include "calls.h"

#define EXPORT __attribute__((visibility("default")))
#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

enum {
	MAX_GPUS = 32,
	MAX_MIG = 8,	   /* MIG devices of one GPU, and compute instances of one GPU instance */
	MAX_INSTANCES = 16, /* ids of one GPU's GPU instances, which its places give */
	MAX_CLOCKS = 32,   /* memory clocks of one GPU */
	MAX_PROCESSES = 64, /* of one GPU */
	MAX_FAULTS = 256,
	MAX_USE = 64,	   /* samples of one GPU's use */
	MAX_FIELDS = 64,   /* of one GPU */
	MASK_WORDS = 128, /* 8192 CPUs or nodes */
	NAME_SIZE = NVML_DEVICE_NAME_V2_BUFFER_SIZE,
};

/* One number or two: a power limit; the ends of a range; a pair of clocks. */
struct value {
	unsigned int first, second;
};

/* What one process can set and another finds. */
enum setting {
	POWER_LIMIT,	    /* mW */
	GPU_CLOCKS,	    /* locked, MHz from, to; 0, 0: not locked */
	MEMORY_CLOCKS,	    /* locked, as above */
	APPLICATION_CLOCKS, /* MHz memory, graphics */
	PERSISTENCE,	    /* 0 or 1 */
	COMPUTE_MODE,	    /* nvmlComputeMode_t */
	SETTINGS
};

struct mask {
	bool known; /* else the call answers Not Supported */
	unsigned long words[MASK_WORDS];
};

struct process {
	unsigned int pid;
	unsigned long long memory; /* bytes */
	int start;		   /* first slice of the GPU instance that it uses, -1: the whole GPU */
};

/* A compute instance, by its id, or a GPU instance's place in slices. */
struct mig_part {
	bool used;
	unsigned int profile, start, size; /* NVML's id of the profile; slices */
};

/* A GPU instance, by its id. */
struct mig_instance {
	struct mig_part is;
	struct mig_part parts[MAX_MIG];
};

/* How a GPU is split. */
struct mig_split {
	unsigned int now, next; /* mode, and that after a reset */
	struct mig_instance instances[MAX_INSTANCES];
};

/* One GPU as the description has it. */
struct gpu {
	char uuid[NAME_SIZE], name[NAME_SIZE];
	unsigned int domain, bus, device, minor, architecture;
	unsigned int pci_id, pci_subsystem;

	struct mask cpus, cpus_socket, nodes, nodes_socket;
	bool has_numa_node;
	unsigned int numa_node;

	bool has_mig, mig_activates; /* can be split; the mode can be switched without a reboot */
	struct mig_split mig_initial;
	char mig_uuid[MAX_MIG][NAME_SIZE]; /* by place, "": made from the place */

	bool has_ecc;
	struct value ecc; /* current, pending */

	struct value power_range; /* mW; 0, 0: not supported */
	unsigned int memory_clocks[MAX_CLOCKS], memory_clock_count; /* MHz, falling */
	unsigned int clock_max, clock_min, clock_step;		     /* graphics, MHz; max 0: not supported */
	unsigned int video_max, video_min;			     /* MHz; max 0: not supported */

	struct value initial[SETTINGS];

	struct process processes[MAX_PROCESSES];
	unsigned int process_count;

	unsigned int remapped[4]; /* correctable, uncorrectable, pending, failed */
	unsigned long long event_reasons, energy; /* mask; mJ */
	unsigned int temperature, pstate, power;  /* °C; P0 is 0; mW */
	struct value utilization;		  /* %: GPU, memory */
	unsigned long long memory, memory_used;	  /* bytes */
	unsigned int use[MAX_USE], use_count;	  /* %, sampled in turn; none: not supported */
	unsigned int pcie_replays;
	struct value ecc_errors; /* corrected, uncorrected */
	struct {
		unsigned int id;
		unsigned long long value;
	} fields[MAX_FIELDS];
	unsigned int field_count;
};

/* One line "fault …". */
struct fault {
	const char *file; /* the description or the faults file */
	unsigned int line;
	char pattern[64], gpu[NAME_SIZE], program[NAME_SIZE]; /* "": any */
	unsigned int first, last; /* uses that it hits, counted from 1; first 0: all */
	unsigned int slow;	  /* ms */
	bool fails, valued, ignored, applied;
	nvmlReturn_t error;
	struct value value;
};

/* All that the description and the faults file say, read anew at every call. */
struct world {
	char conf[PATH_MAX], faults_file[PATH_MAX], processes_file[PATH_MAX], state[PATH_MAX], log[PATH_MAX], times[PATH_MAX];
	char identity[256]; /* of both files, so that uses are counted anew when one changes */
	char driver[NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE], library[NVML_SYSTEM_NVML_VERSION_BUFFER_SIZE];
	unsigned int cuda;
	struct gpu gpus[MAX_GPUS];
	unsigned int gpu_count;
	struct fault faults[MAX_FAULTS];
	unsigned int fault_count;
};

struct state {
	struct value values[MAX_GPUS][SETTINGS];
	struct mig_split split[MAX_GPUS];
};

/* One call of the library on its way through. */
struct call {
	enum call_name name;
	struct world *world; /* NULL: could not be read */
	struct gpu *gpu;     /* NULL: not about a GPU */
	int place;	     /* of the MIG device that the handle means, -1: the GPU itself */
	int instance, part;  /* ids that the handle means, -1: it is no such handle */
	struct state *state; /* read when it was first asked for */
	struct value wanted; /* of a call that sets */
	struct fault fault;  /* the effect of all the faults that hit */
	struct timespec began;
};

/* call.c: every function begins with one of call_… and ends with call_end. */
nvmlReturn_t call_begin(struct call *c, enum call_name name);
nvmlReturn_t call_system(struct call *c, enum call_name name);
nvmlReturn_t call_device(struct call *c, enum call_name name, nvmlDevice_t device);
nvmlReturn_t call_gpu(struct call *c, enum call_name name, nvmlDevice_t device);
nvmlReturn_t call_change(struct call *c, enum call_name name, nvmlDevice_t device, struct value wanted);
nvmlReturn_t call_end(struct call *c, nvmlReturn_t ret);
nvmlReturn_t call_value(struct call *c, nvmlDevice_t device, enum call_name name, enum setting s, unsigned int *out);
nvmlReturn_t answer(const struct call *c, unsigned int *out, unsigned int value);
nvmlReturn_t answer_two(const struct call *c, unsigned int *first, unsigned int *second, struct value value);
nvmlReturn_t answer_text(char *out, unsigned int length, const char *text);
nvmlDevice_t handle_of(unsigned int gpu, int place);
unsigned int index_of(const struct call *c);
nvmlGpuInstance_t instance_handle(const struct call *c, unsigned int id);
nvmlComputeInstance_t part_handle(const struct call *c, unsigned int id, unsigned int part);
nvmlReturn_t call_instance(struct call *c, enum call_name name, nvmlGpuInstance_t handle);
nvmlReturn_t call_part(struct call *c, enum call_name name, nvmlComputeInstance_t handle);
const struct mig_split *call_split(struct call *c);

/* mig_split.c */
bool split_parse(char *text, struct mig_split *split);
void split_text(const struct mig_split *split, char *out, size_t size);
bool split_device(const struct mig_split *split, unsigned int place, unsigned int *instance, unsigned int *part);
void split_uuid(const struct gpu *g, unsigned int place, char *out, size_t size);
unsigned int instance_id(unsigned int start, unsigned int size);

/* library.c */
bool initialised(void);
bool return_named(const char *name, nvmlReturn_t *ret);
const char *return_name(nvmlReturn_t ret);

/* place.c */
bool place_find(char *conf, size_t size);
bool place_beside(char *out, size_t size, const char *file, const char *name);

/* description.c */
nvmlReturn_t world_read(struct world *w);

/* fault.c */
bool fault_parse(struct world *w, char *text, struct fault *f, char *why, size_t size);
nvmlReturn_t fault_hit(struct call *c);

/* state.c */
int state_lock(const struct world *w);
void state_unlock(int lock);
bool state_replace(const char *path, const char *text, size_t length);
nvmlReturn_t state_read(const struct world *w, struct state *s);
bool state_reset(const struct world *w);
nvmlReturn_t state_change(struct call *c, enum setting s, struct value value);
nvmlReturn_t state_split(struct call *c, nvmlReturn_t (*change)(struct call *c, struct mig_split *split));

/* text.c */
char *text_read(const char *path, char *identity, size_t size);
char *text_word(char **rest);
bool text_number(const char *word, unsigned long long limit, unsigned long long *out);
bool text_mask(const char *list, struct mask *m);
__attribute__((format(printf, 1, 2))) void complain(const char *format, ...);

#endif

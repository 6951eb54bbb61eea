/* What every call goes through: reading the description, finding the GPU, faults, the log. */
#include "fake.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * A handle is the address of a GPU's place here: 0 the GPU itself, 1… its MIG
 * devices. go-nvml's nvml.h wraps the pointer in a structure of one member,
 * which the ABI passes as the pointer.
 */
static char handles[MAX_GPUS][1 + MAX_MIG];

/* The same for GPU instances and, from 1 on, their compute instances, by id. */
static char instance_handles[MAX_GPUS][MAX_INSTANCES][1 + MAX_MIG];

nvmlDevice_t handle_of(unsigned int gpu, int place)
{
	return (nvmlDevice_t){(struct nvmlDevice_st *)&handles[gpu][1 + place]};
}

unsigned int index_of(const struct call *c)
{
	return (unsigned int)(c->gpu - c->world->gpus);
}

nvmlGpuInstance_t instance_handle(const struct call *c, unsigned int id)
{
	return (nvmlGpuInstance_t){(struct nvmlGpuInstance_st *)&instance_handles[index_of(c)][id][0]};
}

nvmlComputeInstance_t part_handle(const struct call *c, unsigned int id, unsigned int part)
{
	return (nvmlComputeInstance_t){(struct nvmlComputeInstance_st *)&instance_handles[index_of(c)][id][1 + part]};
}

/* How the call's GPU is split at present, NULL after a complaint. */
const struct mig_split *call_split(struct call *c)
{
	if (!c->state) {
		c->state = calloc(1, sizeof *c->state);
		if (!c->state || state_read(c->world, c->state) != NVML_SUCCESS) {
			free(c->state);
			c->state = NULL;
			return NULL;
		}
	}
	return &c->state->split[index_of(c)];
}

/* Finds an instance by the address that its handle has. */
static bool find_instance(struct call *c, uintptr_t address)
{
	uintptr_t offset = address - (uintptr_t)instance_handles;
	if (offset >= sizeof instance_handles || offset / sizeof instance_handles[0] >= c->world->gpu_count)
		return false;
	c->gpu = &c->world->gpus[offset / sizeof instance_handles[0]];
	offset %= sizeof instance_handles[0];
	c->instance = (int)(offset / sizeof instance_handles[0][0]);
	c->part = (int)(offset % sizeof instance_handles[0][0]) - 1;
	const struct mig_split *split = call_split(c);
	const struct mig_instance *is = split ? &split->instances[c->instance] : NULL;
	return is && is->is.used && (c->part < 0 || is->parts[c->part].used);
}

static nvmlReturn_t call_below(struct call *c, enum call_name name, uintptr_t address, bool part)
{
	nvmlReturn_t ret = call_begin(c, name);
	if (ret != NVML_SUCCESS)
		return ret;
	if (!find_instance(c, address) || (c->part >= 0) != part) {
		c->gpu = NULL;
		return NVML_ERROR_INVALID_ARGUMENT;
	}
	return fault_hit(c);
}

/* A call about a GPU instance. */
nvmlReturn_t call_instance(struct call *c, enum call_name name, nvmlGpuInstance_t handle)
{
	return call_below(c, name, (uintptr_t)handle.handle, false);
}

/* A call about a compute instance. */
nvmlReturn_t call_part(struct call *c, enum call_name name, nvmlComputeInstance_t handle)
{
	return call_below(c, name, (uintptr_t)handle.handle, true);
}

static bool find(struct call *c, nvmlDevice_t device)
{
	unsigned int instance, part;
	uintptr_t offset = (uintptr_t)device.handle - (uintptr_t)handles;
	if (offset >= sizeof handles || offset / sizeof handles[0] >= c->world->gpu_count)
		return false;
	c->gpu = &c->world->gpus[offset / sizeof handles[0]];
	c->place = (int)(offset % sizeof handles[0]) - 1;
	if (c->place < 0)
		return true;
	const struct mig_split *split = call_split(c);
	return split && split_device(split, (unsigned int)c->place, &instance, &part);
}

/* What the calls of this process took so far; calls can run in several threads. */
static _Atomic unsigned long long calls, nanoseconds;

/* "gputune-prolog 4711 212 CALLS 31415926 NS", when the library is shut down. */
static void times_line(const struct call *c)
{
	char line[256];
	int n = snprintf(line, sizeof line, "%s %d %llu CALLS %llu NS\n", program_invocation_short_name, (int)getpid(), calls, nanoseconds);
	int fd = open(c->world->times, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
	if (fd < 0 || write(fd, line, (size_t)n) != n)
		complain("%s: %s", c->world->times, strerror(errno));
	if (fd >= 0)
		close(fd);
}

/* Reads the description; faults are the caller's, once it knows the GPU. */
nvmlReturn_t call_begin(struct call *c, enum call_name name)
{
	*c = (struct call){.name = name, .place = -1, .instance = -1, .part = -1};
	clock_gettime(CLOCK_MONOTONIC, &c->began);
	if (name != CALL_Init && !initialised())
		return NVML_ERROR_UNINITIALIZED;
	c->world = calloc(1, sizeof *c->world);
	if (!c->world)
		return NVML_ERROR_MEMORY;
	return world_read(c->world);
}

/* A call that is not about a GPU. */
nvmlReturn_t call_system(struct call *c, enum call_name name)
{
	nvmlReturn_t ret = call_begin(c, name);
	return ret == NVML_SUCCESS ? fault_hit(c) : ret;
}

/* A call about a GPU or a MIG device. */
nvmlReturn_t call_device(struct call *c, enum call_name name, nvmlDevice_t device)
{
	nvmlReturn_t ret = call_begin(c, name);
	if (ret != NVML_SUCCESS)
		return ret;
	if (!find(c, device)) {
		c->gpu = NULL;
		return NVML_ERROR_INVALID_ARGUMENT;
	}
	return fault_hit(c);
}

/* A call about a whole GPU. */
nvmlReturn_t call_gpu(struct call *c, enum call_name name, nvmlDevice_t device)
{
	nvmlReturn_t ret = call_device(c, name, device);
	return ret == NVML_SUCCESS && c->place >= 0 ? NVML_ERROR_NOT_SUPPORTED : ret;
}

/* A call that sets something of a whole GPU. */
nvmlReturn_t call_change(struct call *c, enum call_name name, nvmlDevice_t device, struct value wanted)
{
	nvmlReturn_t ret = call_gpu(c, name, device);
	c->wanted = wanted;
	return ret == NVML_SUCCESS && geteuid() != 0 ? NVML_ERROR_NO_PERMISSION : ret;
}

/*
 * "SetPowerManagementLimit GPU-… 500000 SUCCESS". Others than root may not be
 * able to write the log; what they ask is refused anyway.
 */
static void log_line(const struct call *c, nvmlReturn_t ret)
{
	char line[256];
	const struct call_kind *kind = &call_kinds[c->name];
	int n = snprintf(line, sizeof line, "%s %s ", kind->name, c->gpu->uuid);
	if (strncmp(kind->name, "Reset", 5) != 0)
		n += snprintf(line + n, sizeof line - (size_t)n, kind->numbers == 2 ? "%u,%u " : "%u ",
			      c->wanted.first, c->wanted.second);
	n += snprintf(line + n, sizeof line - (size_t)n, "%s\n", return_name(ret));
	int fd = open(c->world->log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
	if (fd < 0 && geteuid() != 0)
		return;
	if (fd < 0 || write(fd, line, (size_t)n) != n)
		complain("%s: %s", c->world->log, strerror(errno));
	if (fd >= 0)
		close(fd);
}

nvmlReturn_t call_end(struct call *c, nvmlReturn_t ret)
{
	if (c->gpu && call_kinds[c->name].sets && c->world->log[0] != '\0')
		log_line(c, ret);
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	calls++;
	nanoseconds += (unsigned long long)((now.tv_sec - c->began.tv_sec) * 1000000000LL + now.tv_nsec - c->began.tv_nsec);
	if (c->world && c->name == CALL_Shutdown && c->world->times[0] != '\0')
		times_line(c);
	free(c->state);
	free(c->world);
	return ret;
}

/* The whole of a call that reads the first number of a setting. */
nvmlReturn_t call_value(struct call *c, nvmlDevice_t device, enum call_name name, enum setting s, unsigned int *out)
{
	struct state st;
	nvmlReturn_t ret = call_gpu(c, name, device);
	if (ret == NVML_SUCCESS && s == POWER_LIMIT && c->gpu->power_range.second == 0)
		ret = NVML_ERROR_NOT_SUPPORTED;
	if (ret == NVML_SUCCESS)
		ret = state_read(c->world, &st);
	if (ret == NVML_SUCCESS)
		ret = answer(c, out, st.values[index_of(c)][s].first);
	return call_end(c, ret);
}

nvmlReturn_t answer(const struct call *c, unsigned int *out, unsigned int value)
{
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	*out = c->fault.valued ? c->fault.value.first : value;
	return NVML_SUCCESS;
}

nvmlReturn_t answer_two(const struct call *c, unsigned int *first, unsigned int *second, struct value value)
{
	if (!first || !second)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (c->fault.valued)
		value = c->fault.value;
	*first = value.first;
	*second = value.second;
	return NVML_SUCCESS;
}

nvmlReturn_t answer_text(char *out, unsigned int length, const char *text)
{
	size_t size = strlen(text) + 1;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (length < size)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(out, text, size);
	return NVML_SUCCESS;
}

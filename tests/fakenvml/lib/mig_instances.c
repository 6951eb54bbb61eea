/* MIG: GPU instances and compute instances, made, told and destroyed. */
#include "fake.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "mig_profiles.h"

static bool overlap(const struct mig_part *a, unsigned int start, unsigned int size)
{
	return a->used && a->start < start + size && start < a->start + a->size;
}

/* A process on the GPU instance keeps it and its compute instances. */
static bool in_use(const struct gpu *g, const struct mig_part *is)
{
	for (unsigned int i = 0; i < g->process_count; i++)
		if (g->processes[i].start == (int)is->start)
			return true;
	return false;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int profileId,
					      nvmlGpuInstance_t *gpuInstances, unsigned int *count)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetGpuInstances, device);
	if (ret == NVML_SUCCESS && (!gpuInstances || !count || !profile_with_id(c.gpu, profileId)))
		ret = NVML_ERROR_INVALID_ARGUMENT;
	const struct mig_split *split = ret == NVML_SUCCESS ? call_split(&c) : NULL;
	if (ret == NVML_SUCCESS && !split)
		ret = NVML_ERROR_UNKNOWN;
	if (ret == NVML_SUCCESS) {
		*count = 0;
		for (unsigned int id = 0; split->now == NVML_DEVICE_MIG_ENABLE && id < MAX_INSTANCES; id++)
			if (split->instances[id].is.used && split->instances[id].is.profile == profileId)
				gpuInstances[(*count)++] = instance_handle(&c, id);
	}
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *gpuInstance)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetGpuInstanceById, device);
	if (ret == NVML_SUCCESS && !gpuInstance)
		ret = NVML_ERROR_INVALID_ARGUMENT;
	const struct mig_split *split = ret == NVML_SUCCESS ? call_split(&c) : NULL;
	if (ret == NVML_SUCCESS && (!split || split->now != NVML_DEVICE_MIG_ENABLE))
		ret = split ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_UNKNOWN;
	if (ret == NVML_SUCCESS && (id >= MAX_INSTANCES || !split->instances[id].is.used))
		ret = NVML_ERROR_NOT_FOUND;
	if (ret == NVML_SUCCESS)
		*gpuInstance = instance_handle(&c, id);
	return call_end(&c, ret);
}

static nvmlReturn_t create_instance(struct call *c, struct mig_split *split)
{
	const struct profile *p = profile_with_id(c->gpu, c->wanted.first);
	unsigned int start = c->wanted.second, same = 0;
	if (split->now != NVML_DEVICE_MIG_ENABLE)
		return NVML_ERROR_NOT_SUPPORTED;
	if (!p || start % p->size != 0 || start / p->size >= p->places)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned int id = 0; id < MAX_INSTANCES; id++) {
		const struct mig_part *other = &split->instances[id].is;
		if (overlap(other, start, p->size))
			return NVML_ERROR_INSUFFICIENT_RESOURCES;
		same += other->used && other->profile == p->id;
	}
	if (same >= p->count)
		return NVML_ERROR_INSUFFICIENT_RESOURCES;
	c->instance = (int)instance_id(start, p->size);
	split->instances[c->instance] = (struct mig_instance){.is = {true, p->id, start, p->size}};
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int profileId,
							     const nvmlGpuInstancePlacement_t *placement,
							     nvmlGpuInstance_t *gpuInstance)
{
	struct call c;
	nvmlReturn_t ret = call_change(&c, CALL_CreateGpuInstanceWithPlacement, device,
				       (struct value){profileId, placement ? placement->start : 0});
	if (ret == NVML_SUCCESS && (!placement || !gpuInstance))
		ret = NVML_ERROR_INVALID_ARGUMENT;
	const struct profile *p = ret == NVML_SUCCESS ? profile_with_id(c.gpu, profileId) : NULL;
	if (ret == NVML_SUCCESS && (!p || placement->size != p->size))
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS && c.fault.valued)
		c.wanted = c.fault.value;
	if (ret == NVML_SUCCESS)
		ret = state_split(&c, create_instance);
	if (ret == NVML_SUCCESS)
		*gpuInstance = instance_handle(&c, c.instance < 0 ? 0 : (unsigned int)c.instance);
	return call_end(&c, ret);
}

/* The GPU instance that the call is about, in the state that is being changed. */
static struct mig_instance *now(const struct call *c, struct mig_split *split)
{
	struct mig_instance *is = &split->instances[c->instance];
	return is->is.used ? is : NULL;
}

static nvmlReturn_t destroy_instance(struct call *c, struct mig_split *split)
{
	struct mig_instance *is = now(c, split);
	if (!is)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned int part = 0; part < MAX_MIG; part++)
		if (is->parts[part].used)
			return NVML_ERROR_IN_USE;
	if (in_use(c->gpu, &is->is))
		return NVML_ERROR_IN_USE;
	memset(is, 0, sizeof *is);
	return NVML_SUCCESS;
}

/* What only root can do to an instance. */
static nvmlReturn_t as_root(struct call *c, nvmlReturn_t ret, struct value wanted)
{
	c->wanted = wanted;
	return ret == NVML_SUCCESS && geteuid() != 0 ? NVML_ERROR_NO_PERMISSION : ret;
}

EXPORT nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t gpuInstance)
{
	struct call c;
	nvmlReturn_t ret = call_instance(&c, CALL_GpuInstanceDestroy, gpuInstance);
	ret = as_root(&c, ret, (struct value){c.instance < 0 ? 0 : (unsigned int)c.instance, 0});
	if (ret == NVML_SUCCESS)
		ret = state_split(&c, destroy_instance);
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t gpuInstance, nvmlGpuInstanceInfo_t *info)
{
	struct call c;
	nvmlReturn_t ret = call_instance(&c, CALL_GpuInstanceGetInfo, gpuInstance);
	if (ret == NVML_SUCCESS && !info)
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS) {
		const struct mig_part *is = &call_split(&c)->instances[c.instance].is;
		*info = (nvmlGpuInstanceInfo_t){
			.device = handle_of(index_of(&c), -1),
			.id = (unsigned int)c.instance,
			.profileId = is->profile,
			.placement = {is->start, is->size},
		};
	}
	return call_end(&c, ret);
}

/* The profile of the GPU instance that the call is about. */
static const struct profile *profile_of(struct call *c)
{
	return profile_with_id(c->gpu, call_split(c)->instances[c->instance].is.profile);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t gpuInstance, unsigned int profile,
								  unsigned int engProfile,
								  nvmlComputeInstanceProfileInfo_v2_t *info)
{
	struct call c;
	struct part_profile part;
	nvmlReturn_t ret = call_instance(&c, CALL_GpuInstanceGetComputeInstanceProfileInfoV, gpuInstance);
	if (ret == NVML_SUCCESS && (!info || info->version != nvmlComputeInstanceProfileInfo_v2 ||
				    profile >= NVML_COMPUTE_INSTANCE_PROFILE_COUNT ||
				    engProfile >= NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT))
		ret = NVML_ERROR_INVALID_ARGUMENT;
	const struct profile *p = ret == NVML_SUCCESS ? profile_of(&c) : NULL;
	if (ret == NVML_SUCCESS && (!p || !part_profile(p, profile, &part)))
		ret = NVML_ERROR_NOT_SUPPORTED;
	if (ret == NVML_SUCCESS) {
		*info = (nvmlComputeInstanceProfileInfo_v2_t){
			.id = profile,
			.sliceCount = part.slices,
			.instanceCount = part.places,
			.multiprocessorCount = p->multiprocessors * part.slices / p->slices,
		};
		if (part.slices == p->slices)
			snprintf(info->name, sizeof info->name, "MIG %s", p->name);
		else
			snprintf(info->name, sizeof info->name, "MIG %uc.%s", part.slices, p->name);
	}
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t gpuInstance, unsigned int profileId,
						       nvmlComputeInstance_t *computeInstances, unsigned int *count)
{
	struct call c;
	nvmlReturn_t ret = call_instance(&c, CALL_GpuInstanceGetComputeInstances, gpuInstance);
	if (ret == NVML_SUCCESS && (!computeInstances || !count))
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS) {
		const struct mig_instance *is = &call_split(&c)->instances[c.instance];
		*count = 0;
		for (unsigned int part = 0; part < MAX_MIG; part++)
			if (is->parts[part].used && is->parts[part].profile == profileId)
				computeInstances[(*count)++] = part_handle(&c, (unsigned int)c.instance, part);
	}
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t gpuInstance, unsigned int id,
							  nvmlComputeInstance_t *computeInstance)
{
	struct call c;
	nvmlReturn_t ret = call_instance(&c, CALL_GpuInstanceGetComputeInstanceById, gpuInstance);
	if (ret == NVML_SUCCESS && !computeInstance)
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS && (id >= MAX_MIG || !call_split(&c)->instances[c.instance].parts[id].used))
		ret = NVML_ERROR_NOT_FOUND;
	if (ret == NVML_SUCCESS)
		*computeInstance = part_handle(&c, (unsigned int)c.instance, id);
	return call_end(&c, ret);
}

/* Makes the compute instance of profile wanted.first, at wanted.second or, if that is ~0, at the first free place. */
static nvmlReturn_t create_part(struct call *c, struct mig_split *split)
{
	struct mig_instance *is = now(c, split);
	const struct profile *p = is ? profile_with_id(c->gpu, is->is.profile) : NULL;
	struct part_profile kind;
	if (!p || !part_profile(p, c->wanted.first, &kind))
		return NVML_ERROR_NOT_SUPPORTED;
	for (unsigned int place = 0; place < kind.places; place++) {
		unsigned int start = place * kind.step, id = MAX_MIG;
		bool taken = c->wanted.second != ~0U && c->wanted.second != start;
		for (unsigned int part = MAX_MIG; part-- > 0;) {
			taken = taken || overlap(&is->parts[part], start, kind.slices);
			if (!is->parts[part].used)
				id = part;
		}
		if (taken || id == MAX_MIG)
			continue;
		is->parts[id] = (struct mig_part){true, c->wanted.first, start, kind.slices};
		c->part = (int)id;
		return NVML_SUCCESS;
	}
	return NVML_ERROR_INSUFFICIENT_RESOURCES;
}

static nvmlReturn_t part_made(struct call *c, nvmlReturn_t ret, nvmlComputeInstance_t *computeInstance)
{
	if (ret == NVML_SUCCESS && !computeInstance)
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS && c->fault.valued)
		c->wanted = c->fault.value;
	if (ret == NVML_SUCCESS)
		ret = state_split(c, create_part);
	if (ret == NVML_SUCCESS)
		*computeInstance = part_handle(c, (unsigned int)c->instance, c->part < 0 ? 0 : (unsigned int)c->part);
	return call_end(c, ret);
}

EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t gpuInstance, unsigned int profileId,
							 nvmlComputeInstance_t *computeInstance)
{
	struct call c;
	nvmlReturn_t ret = call_instance(&c, CALL_GpuInstanceCreateComputeInstance, gpuInstance);
	return part_made(&c, as_root(&c, ret, (struct value){profileId, ~0U}), computeInstance);
}

EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t gpuInstance,
								      unsigned int profileId,
								      const nvmlComputeInstancePlacement_t *placement,
								      nvmlComputeInstance_t *computeInstance)
{
	struct call c;
	nvmlReturn_t ret = call_instance(&c, CALL_GpuInstanceCreateComputeInstanceWithPlacement, gpuInstance);
	ret = as_root(&c, ret, (struct value){profileId, placement ? placement->start : 0});
	if (ret == NVML_SUCCESS && !placement)
		ret = NVML_ERROR_INVALID_ARGUMENT;
	return part_made(&c, ret, computeInstance);
}

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t computeInstance, nvmlComputeInstanceInfo_t *info)
{
	struct call c;
	nvmlReturn_t ret = call_part(&c, CALL_ComputeInstanceGetInfo, computeInstance);
	if (ret == NVML_SUCCESS && !info)
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS) {
		const struct mig_part *is = &call_split(&c)->instances[c.instance].parts[c.part];
		*info = (nvmlComputeInstanceInfo_t){
			.device = handle_of(index_of(&c), -1),
			.gpuInstance = instance_handle(&c, (unsigned int)c.instance),
			.id = (unsigned int)c.part,
			.profileId = is->profile,
			.placement = {is->start, is->size},
		};
	}
	return call_end(&c, ret);
}

/* Drivers have both names. */
EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t computeInstance, nvmlComputeInstanceInfo_t *info)
{
	return nvmlComputeInstanceGetInfo_v2(computeInstance, info);
}

static nvmlReturn_t destroy_part(struct call *c, struct mig_split *split)
{
	struct mig_instance *is = now(c, split);
	if (!is || !is->parts[c->part].used)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (in_use(c->gpu, &is->is))
		return NVML_ERROR_IN_USE;
	is->parts[c->part] = (struct mig_part){0};
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t computeInstance)
{
	struct call c;
	nvmlReturn_t ret = call_part(&c, CALL_ComputeInstanceDestroy, computeInstance);
	ret = as_root(&c, ret, (struct value){c.instance < 0 ? 0 : (unsigned int)c.instance, c.part < 0 ? 0 : (unsigned int)c.part});
	if (ret == NVML_SUCCESS)
		ret = state_split(&c, destroy_part);
	return call_end(&c, ret);
}

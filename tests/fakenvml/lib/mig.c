/* MIG: mode, what a GPU can be split into, and the MIG devices there are. */
#include "fake.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "mig_profiles.h"

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *currentMode, unsigned int *pendingMode)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetMigMode, device);
	if (ret == NVML_SUCCESS && !c.gpu->has_mig)
		ret = NVML_ERROR_NOT_SUPPORTED;
	const struct mig_split *split = ret == NVML_SUCCESS ? call_split(&c) : NULL;
	if (ret == NVML_SUCCESS)
		ret = split ? answer_two(&c, currentMode, pendingMode, (struct value){split->now, split->next}) :
			      NVML_ERROR_UNKNOWN;
	return call_end(&c, ret);
}

static bool has_instances(const struct mig_split *split)
{
	for (unsigned int id = 0; id < MAX_INSTANCES; id++)
		if (split->instances[id].is.used)
			return true;
	return false;
}

/*
 * Ampere notes a mode that cannot become active now for the next reset, Hopper
 * forgets it. What keeps it from becoming active is the mode's status, not the
 * call's: place carries it out of here.
 */
static nvmlReturn_t set_mode(struct call *c, struct mig_split *split)
{
	unsigned int mode = c->wanted.first;
	bool resets = c->gpu->architecture < NVML_DEVICE_ARCH_HOPPER;
	bool busy = mode != split->now && (has_instances(split) || (resets && c->gpu->process_count > 0));
	bool stuck = mode != split->now && resets && !c->gpu->mig_activates;
	if (resets || !busy)
		split->next = mode;
	if (!busy && !stuck)
		split->now = mode;
	c->wanted.second = busy ? NVML_ERROR_IN_USE : stuck ? NVML_ERROR_RESET_REQUIRED : NVML_SUCCESS;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activationStatus)
{
	struct call c;
	nvmlReturn_t ret = call_change(&c, CALL_SetMigMode, device, (struct value){mode, NVML_SUCCESS});
	if (ret == NVML_SUCCESS && c.fault.valued)
		c.wanted = (struct value){c.fault.value.first, NVML_SUCCESS};
	if (ret == NVML_SUCCESS && (mode > NVML_DEVICE_MIG_ENABLE || !activationStatus))
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS && !c.gpu->has_mig)
		ret = NVML_ERROR_NOT_SUPPORTED;
	if (ret == NVML_SUCCESS)
		ret = state_split(&c, set_mode);
	if (ret == NVML_SUCCESS)
		*activationStatus = (nvmlReturn_t)c.wanted.second;
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile,
							 nvmlGpuInstanceProfileInfo_v2_t *info)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetGpuInstanceProfileInfoV, device);
	if (ret == NVML_SUCCESS && (!info || info->version != nvmlGpuInstanceProfileInfo_v2 || profile >= PROFILE_NUMBERS))
		ret = NVML_ERROR_INVALID_ARGUMENT;
	const struct profile *p = ret == NVML_SUCCESS ? profile_numbered(c.gpu, profile) : NULL;
	if (ret == NVML_SUCCESS && !p)
		ret = NVML_ERROR_NOT_SUPPORTED;
	if (ret == NVML_SUCCESS) {
		*info = (nvmlGpuInstanceProfileInfo_v2_t){
			.id = p->id,
			.sliceCount = p->slices,
			.instanceCount = p->count,
			.multiprocessorCount = p->multiprocessors,
			.memorySizeMB = p->memory,
		};
		snprintf(info->name, sizeof info->name, "MIG %s", p->name);
	}
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int profileId,
								  nvmlGpuInstancePlacement_t *placements,
								  unsigned int *count)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetGpuInstancePossiblePlacements, device);
	if (ret == NVML_SUCCESS && !count)
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS && geteuid() != 0)
		ret = NVML_ERROR_NO_PERMISSION;
	const struct profile *p = ret == NVML_SUCCESS ? profile_with_id(c.gpu, profileId) : NULL;
	if (ret == NVML_SUCCESS && !p)
		ret = NVML_ERROR_NOT_SUPPORTED;
	if (ret == NVML_SUCCESS) {
		*count = p->places;
		for (unsigned int i = 0; placements && i < p->places; i++)
			placements[i] = (nvmlGpuInstancePlacement_t){i * p->size, p->size};
	}
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetMaxMigDeviceCount, device);
	const struct mig_split *split = ret == NVML_SUCCESS ? call_split(&c) : NULL;
	if (ret == NVML_SUCCESS)
		ret = split ? answer(&c, count, split->now == NVML_DEVICE_MIG_ENABLE ? 7 : 0) : NVML_ERROR_UNKNOWN;
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index,
							nvmlDevice_t *migDevice)
{
	struct call c;
	unsigned int instance, part;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetMigDeviceHandleByIndex, device);
	const struct mig_split *split = ret == NVML_SUCCESS ? call_split(&c) : NULL;
	if (ret == NVML_SUCCESS && !split)
		ret = NVML_ERROR_UNKNOWN;
	if (ret == NVML_SUCCESS && split->now != NVML_DEVICE_MIG_ENABLE)
		ret = NVML_ERROR_NOT_FOUND;
	if (ret == NVML_SUCCESS && (!migDevice || index >= 7))
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS && !split_device(split, index, &instance, &part))
		ret = NVML_ERROR_NOT_FOUND;
	if (ret == NVML_SUCCESS)
		*migDevice = handle_of(index_of(&c), (int)index);
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t migDevice, nvmlDevice_t *device)
{
	struct call c;
	nvmlReturn_t ret = call_device(&c, CALL_GetDeviceHandleFromMigDeviceHandle, migDevice);
	if (ret == NVML_SUCCESS && (!device || c.place < 0))
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS)
		*device = handle_of(index_of(&c), -1);
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *isMigDevice)
{
	struct call c;
	nvmlReturn_t ret = call_device(&c, CALL_IsMigDeviceHandle, device);
	if (ret == NVML_SUCCESS)
		ret = answer(&c, isMigDevice, c.place >= 0);
	return call_end(&c, ret);
}

/* The id of the GPU instance that a MIG device is in, or of its compute instance. */
static nvmlReturn_t device_id(enum call_name name, nvmlDevice_t device, unsigned int *id)
{
	struct call c;
	unsigned int instance = 0, part = 0;
	nvmlReturn_t ret = call_device(&c, name, device);
	if (ret == NVML_SUCCESS && c.place < 0)
		ret = NVML_ERROR_NOT_SUPPORTED;
	if (ret == NVML_SUCCESS && !split_device(call_split(&c), (unsigned int)c.place, &instance, &part))
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS)
		ret = answer(&c, id, name == CALL_GetGpuInstanceId ? instance : part);
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
	return device_id(CALL_GetGpuInstanceId, device, id);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
	return device_id(CALL_GetComputeInstanceId, device, id);
}

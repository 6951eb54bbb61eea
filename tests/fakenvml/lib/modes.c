/* Persistence, compute and ECC mode. */
#include "fake.h"

EXPORT nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
	struct call c;
	unsigned int found = 0;
	nvmlReturn_t ret = call_value(&c, device, CALL_GetPersistenceMode, PERSISTENCE, mode ? &found : NULL);
	if (ret == NVML_SUCCESS)
		*mode = (nvmlEnableState_t)found;
	return ret;
}

EXPORT nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t mode)
{
	struct call c;
	nvmlReturn_t ret = call_change(&c, CALL_SetPersistenceMode, device, (struct value){mode, 0});
	if (ret == NVML_SUCCESS && mode != NVML_FEATURE_DISABLED && mode != NVML_FEATURE_ENABLED)
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS)
		ret = state_change(&c, PERSISTENCE, c.wanted);
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode)
{
	struct call c;
	unsigned int found = 0;
	nvmlReturn_t ret = call_value(&c, device, CALL_GetComputeMode, COMPUTE_MODE, mode ? &found : NULL);
	if (ret == NVML_SUCCESS)
		*mode = (nvmlComputeMode_t)found;
	return ret;
}

EXPORT nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode)
{
	struct call c;
	nvmlReturn_t ret = call_change(&c, CALL_SetComputeMode, device, (struct value){mode, 0});
	if (ret == NVML_SUCCESS && (unsigned int)mode >= NVML_COMPUTEMODE_COUNT)
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS && mode == NVML_COMPUTEMODE_EXCLUSIVE_THREAD)
		ret = NVML_ERROR_NOT_SUPPORTED; /* nvml.h: "Support Removed" */
	if (ret == NVML_SUCCESS)
		ret = state_change(&c, COMPUTE_MODE, c.wanted);
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending)
{
	struct call c;
	unsigned int first = 0, second = 0;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetEccMode, device);
	if (ret == NVML_SUCCESS && (!current || !pending))
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS)
		ret = c.gpu->has_ecc ? answer_two(&c, &first, &second, c.gpu->ecc) : NVML_ERROR_NOT_SUPPORTED;
	if (ret == NVML_SUCCESS) {
		*current = (nvmlEnableState_t)first;
		*pending = (nvmlEnableState_t)second;
	}
	return call_end(&c, ret);
}

/* MIG: what is there. Splitting a GPU is not offered. */
#include "fake.h"

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *currentMode, unsigned int *pendingMode)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetMigMode, device);
	if (ret == NVML_SUCCESS && !c.gpu->has_mig)
		ret = NVML_ERROR_NOT_SUPPORTED;
	if (ret == NVML_SUCCESS)
		ret = answer_two(&c, currentMode, pendingMode, (struct value){c.gpu->mig_mode, c.gpu->mig_mode});
	return call_end(&c, ret);
}

static bool split(const struct gpu *g)
{
	return g->has_mig && g->mig_mode == NVML_DEVICE_MIG_ENABLE;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetMaxMigDeviceCount, device);
	if (ret == NVML_SUCCESS)
		ret = answer(&c, count, split(c.gpu) ? MAX_MIG : 0);
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index,
							nvmlDevice_t *migDevice)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetMigDeviceHandleByIndex, device);
	if (ret == NVML_SUCCESS && !split(c.gpu))
		ret = NVML_ERROR_NOT_FOUND;
	if (ret == NVML_SUCCESS && (!migDevice || index >= MAX_MIG))
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS && c.gpu->mig[index][0] == '\0')
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

/* The library itself: init and shutdown, versions, names of errors. */
#include "fake.h"

#include <stdatomic.h>
#include <string.h>

static atomic_uint users; /* inits without their shutdown */

static const struct {
	nvmlReturn_t ret;
	const char *name, *text;
} returns[] = {
	{NVML_SUCCESS, "SUCCESS", "Success"},
	{NVML_ERROR_UNINITIALIZED, "UNINITIALIZED", "Uninitialized"},
	{NVML_ERROR_INVALID_ARGUMENT, "INVALID_ARGUMENT", "Invalid Argument"},
	{NVML_ERROR_NOT_SUPPORTED, "NOT_SUPPORTED", "Not Supported"},
	{NVML_ERROR_NO_PERMISSION, "NO_PERMISSION", "Insufficient Permissions"},
	{NVML_ERROR_NOT_FOUND, "NOT_FOUND", "Not Found"},
	{NVML_ERROR_INSUFFICIENT_SIZE, "INSUFFICIENT_SIZE", "Insufficient Size"},
	{NVML_ERROR_INSUFFICIENT_POWER, "INSUFFICIENT_POWER", "Insufficient External Power"},
	{NVML_ERROR_DRIVER_NOT_LOADED, "DRIVER_NOT_LOADED", "Driver Not Loaded"},
	{NVML_ERROR_TIMEOUT, "TIMEOUT", "Timeout"},
	{NVML_ERROR_IRQ_ISSUE, "IRQ_ISSUE", "Interrupt Request Issue"},
	{NVML_ERROR_FUNCTION_NOT_FOUND, "FUNCTION_NOT_FOUND", "Function Not Found"},
	{NVML_ERROR_CORRUPTED_INFOROM, "CORRUPTED_INFOROM", "Corrupted infoROM"},
	{NVML_ERROR_GPU_IS_LOST, "GPU_IS_LOST", "GPU is lost"},
	{NVML_ERROR_RESET_REQUIRED, "RESET_REQUIRED", "GPU requires reset"},
	{NVML_ERROR_OPERATING_SYSTEM, "OPERATING_SYSTEM", "The operating system has blocked the request."},
	{NVML_ERROR_LIB_RM_VERSION_MISMATCH, "LIB_RM_VERSION_MISMATCH", "Driver/library version mismatch"},
	{NVML_ERROR_IN_USE, "IN_USE", "In use by another client"},
	{NVML_ERROR_MEMORY, "MEMORY", "Insufficient Memory"},
	{NVML_ERROR_NO_DATA, "NO_DATA", "No data"},
	{NVML_ERROR_INSUFFICIENT_RESOURCES, "INSUFFICIENT_RESOURCES", "Insufficient Resources"},
	{NVML_ERROR_FREQ_NOT_SUPPORTED, "FREQ_NOT_SUPPORTED", "Frequency Not Supported"},
	{NVML_ERROR_NOT_READY, "NOT_READY", "System is not in ready state"},
	{NVML_ERROR_GPU_NOT_FOUND, "GPU_NOT_FOUND", "GPU Not Found"},
	{NVML_ERROR_INVALID_STATE, "INVALID_STATE", "Invalid State"},
	{NVML_ERROR_UNKNOWN, "UNKNOWN", "Unknown Error"},
};

bool initialised(void)
{
	return users > 0;
}

bool return_named(const char *name, nvmlReturn_t *ret)
{
	for (size_t i = 0; i < LENGTH(returns); i++)
		if (strcmp(returns[i].name, name) == 0) {
			*ret = returns[i].ret;
			return true;
		}
	return false;
}

const char *return_name(nvmlReturn_t ret)
{
	for (size_t i = 0; i < LENGTH(returns); i++)
		if (returns[i].ret == ret)
			return returns[i].name;
	return "UNKNOWN";
}

EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
	for (size_t i = 0; i < LENGTH(returns); i++)
		if (returns[i].ret == result)
			return returns[i].text;
	return "Unknown Error";
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
	struct call c;
	(void)flags; /* there is nothing to attach to */
	nvmlReturn_t ret = call_system(&c, CALL_Init);
	if (ret == NVML_SUCCESS)
		users++;
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
	return nvmlInitWithFlags(0);
}

EXPORT nvmlReturn_t nvmlInit(void)
{
	return nvmlInitWithFlags(0);
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
	struct call c;
	nvmlReturn_t ret = call_system(&c, CALL_Shutdown);
	if (ret == NVML_SUCCESS)
		users--;
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	struct call c;
	nvmlReturn_t ret = call_system(&c, CALL_SystemGetDriverVersion);
	if (ret == NVML_SUCCESS)
		ret = answer_text(version, length, c.world->driver);
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
	struct call c;
	nvmlReturn_t ret = call_system(&c, CALL_SystemGetNVMLVersion);
	if (ret == NVML_SUCCESS)
		ret = answer_text(version, length, c.world->library);
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *cudaDriverVersion)
{
	struct call c;
	unsigned int version = 0;
	nvmlReturn_t ret = call_system(&c, CALL_SystemGetCudaDriverVersion);
	if (ret == NVML_SUCCESS)
		ret = cudaDriverVersion ? answer(&c, &version, c.world->cuda) : NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS)
		*cudaDriverVersion = (int)version;
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *cudaDriverVersion)
{
	return nvmlSystemGetCudaDriverVersion_v2(cudaDriverVersion);
}

/* Power limit, power and energy: mW and mJ. */
#include "fake.h"

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *limit)
{
	struct call c;
	return call_value(&c, device, CALL_GetPowerManagementLimit, POWER_LIMIT, limit);
}

EXPORT nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *limit)
{
	struct call c;
	return call_value(&c, device, CALL_GetEnforcedPowerLimit, POWER_LIMIT, limit);
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *minLimit,
								 unsigned int *maxLimit)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetPowerManagementLimitConstraints, device);
	if (ret == NVML_SUCCESS && c.gpu->power_range.second == 0)
		ret = NVML_ERROR_NOT_SUPPORTED;
	if (ret == NVML_SUCCESS)
		ret = answer_two(&c, minLimit, maxLimit, c.gpu->power_range);
	return call_end(&c, ret);
}

/* The limit that the card starts with is the one described. */
EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned int *defaultLimit)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetPowerManagementDefaultLimit, device);
	if (ret == NVML_SUCCESS && c.gpu->power_range.second == 0)
		ret = NVML_ERROR_NOT_SUPPORTED;
	if (ret == NVML_SUCCESS)
		ret = answer(&c, defaultLimit, c.gpu->initial[POWER_LIMIT].first);
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned int limit)
{
	struct call c;
	nvmlReturn_t ret = call_change(&c, CALL_SetPowerManagementLimit, device, (struct value){limit, 0});
	if (ret == NVML_SUCCESS && c.gpu->power_range.second == 0)
		ret = NVML_ERROR_NOT_SUPPORTED;
	if (ret == NVML_SUCCESS && (limit < c.gpu->power_range.first || limit > c.gpu->power_range.second))
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS)
		ret = state_change(&c, POWER_LIMIT, c.wanted);
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *power)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetPowerUsage, device);
	if (ret == NVML_SUCCESS)
		ret = answer(&c, power, c.gpu->power);
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *energy)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetTotalEnergyConsumption, device);
	if (ret == NVML_SUCCESS && !energy)
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS)
		*energy = c.fault.valued ? c.fault.value.first : c.gpu->energy;
	return call_end(&c, ret);
}

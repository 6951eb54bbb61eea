/* What only tells how a GPU is: constants of the description. */
#include "fake.h"

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrRows, unsigned int *uncRows,
					      unsigned int *isPending, unsigned int *failureOccurred)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetRemappedRows, device);
	if (ret == NVML_SUCCESS && (!corrRows || !uncRows || !isPending || !failureOccurred))
		ret = NVML_ERROR_INVALID_ARGUMENT;
	const struct mig_split *split = ret == NVML_SUCCESS ? call_split(&c) : NULL;
	if (ret == NVML_SUCCESS && (!split || split->now == NVML_DEVICE_MIG_ENABLE))
		ret = split ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_UNKNOWN;
	if (ret == NVML_SUCCESS) {
		*corrRows = c.gpu->remapped[0];
		*uncRows = c.gpu->remapped[1];
		*isPending = c.gpu->remapped[2];
		*failureOccurred = c.gpu->remapped[3];
	}
	return call_end(&c, ret);
}

static nvmlReturn_t event_reasons(enum call_name name, nvmlDevice_t device, unsigned long long *reasons)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, name, device);
	if (ret == NVML_SUCCESS && !reasons)
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS)
		*reasons = c.fault.valued ? c.fault.value.first : c.gpu->event_reasons;
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *clocksEventReasons)
{
	return event_reasons(CALL_GetCurrentClocksEventReasons, device, clocksEventReasons);
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device,
							      unsigned long long *clocksThrottleReasons)
{
	return event_reasons(CALL_GetCurrentClocksThrottleReasons, device, clocksThrottleReasons);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *infoCount,
							    nvmlProcessInfo_t *infos)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetComputeRunningProcesses, device);
	if (ret == NVML_SUCCESS && (!infoCount || (*infoCount > 0 && !infos)))
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret != NVML_SUCCESS)
		return call_end(&c, ret);
	unsigned int room = *infoCount;
	*infoCount = c.gpu->process_count;
	if (room < c.gpu->process_count)
		return call_end(&c, NVML_ERROR_INSUFFICIENT_SIZE);
	const struct mig_split *split = call_split(&c);
	for (unsigned int i = 0; i < c.gpu->process_count; i++) {
		infos[i] = (nvmlProcessInfo_t){
			.pid = c.gpu->processes[i].pid,
			.usedGpuMemory = c.gpu->processes[i].memory,
			.gpuInstanceId = UINT_MAX,
			.computeInstanceId = UINT_MAX,
		};
		for (unsigned int id = 0; split && id < MAX_INSTANCES; id++)
			if (split->instances[id].is.used && (int)split->instances[id].is.start == c.gpu->processes[i].start) {
				infos[i].gpuInstanceId = id;
				infos[i].computeInstanceId = 0;
			}
	}
	return call_end(&c, split ? NVML_SUCCESS : NVML_ERROR_UNKNOWN);
}

/* All processes are of the compute kind. */
EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *infoCount,
							     nvmlProcessInfo_t *infos)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetGraphicsRunningProcesses, device);
	if (ret == NVML_SUCCESS && (!infoCount || (*infoCount > 0 && !infos)))
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS)
		*infoCount = 0;
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, nvmlPstates_t *pState)
{
	struct call c;
	unsigned int found = 0;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetPerformanceState, device);
	if (ret == NVML_SUCCESS)
		ret = pState ? answer(&c, &found, c.gpu->pstate) : NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS)
		*pState = (nvmlPstates_t)found;
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetUtilizationRates, device);
	if (ret == NVML_SUCCESS && !utilization)
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS)
		ret = answer_two(&c, &utilization->gpu, &utilization->memory, c.gpu->utilization);
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensorType,
					     unsigned int *temp)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetTemperature, device);
	if (ret == NVML_SUCCESS && sensorType != NVML_TEMPERATURE_GPU)
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS)
		ret = answer(&c, temp, c.gpu->temperature);
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetMemoryInfo, device);
	if (ret == NVML_SUCCESS && !memory)
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS) {
		memory->total = c.gpu->memory;
		memory->used = c.gpu->memory_used;
		memory->free = c.gpu->memory - c.gpu->memory_used;
	}
	return call_end(&c, ret);
}

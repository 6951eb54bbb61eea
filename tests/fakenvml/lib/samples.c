/* What tells how a GPU did over time: samples, counters, fields. */
#include "fake.h"

enum { SAMPLE_PERIOD = 100000, SAMPLE_ROOM = 100 }; /* µs; how many samples the driver keeps */

/*
 * A sample every 100 ms, the described values in turn by the clock: what is asked
 * for over a time that many values fit in has their mean.
 */
EXPORT nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type, unsigned long long lastSeenTimeStamp,
					 nvmlValueType_t *sampleValType, unsigned int *sampleCount, nvmlSample_t *samples)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetSamples, device);
	if (ret == NVML_SUCCESS && (!sampleValType || !sampleCount))
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS && (c.gpu->use_count == 0 || (type != NVML_GPU_UTILIZATION_SAMPLES && type != NVML_MEMORY_UTILIZATION_SAMPLES)))
		ret = NVML_ERROR_NOT_SUPPORTED;
	if (ret != NVML_SUCCESS)
		return call_end(&c, ret);
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	unsigned long long last = ((unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000) / SAMPLE_PERIOD;
	unsigned long long first = lastSeenTimeStamp / SAMPLE_PERIOD + 1;
	if (first + SAMPLE_ROOM <= last)
		first = last - SAMPLE_ROOM + 1;
	unsigned int have = first > last ? 0 : (unsigned int)(last - first + 1);
	*sampleValType = NVML_VALUE_TYPE_UNSIGNED_INT;
	if (samples && *sampleCount < have) /* of those that came since the room was asked for */
		have = *sampleCount;
	for (unsigned int i = 0; samples && i < have; i++) {
		const unsigned int value = type == NVML_GPU_UTILIZATION_SAMPLES ? c.gpu->use[(first + i) % c.gpu->use_count]
										 : c.gpu->utilization.second;
		samples[i] = (nvmlSample_t){.timeStamp = (first + i) * SAMPLE_PERIOD, .sampleValue = {.uiVal = value}};
	}
	*sampleCount = have;
	return call_end(&c, have == 0 ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetMemoryInfo, device);
	if (ret == NVML_SUCCESS && !memory)
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS && memory->version != nvmlMemory_v2)
		ret = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (ret == NVML_SUCCESS) {
		memory->total = c.gpu->memory;
		memory->reserved = 0;
		memory->used = c.gpu->memory_used;
		memory->free = c.gpu->memory - c.gpu->memory_used;
	}
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t device, unsigned int *value)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetPcieReplayCounter, device);
	if (ret == NVML_SUCCESS)
		ret = answer(&c, value, c.gpu->pcie_replays);
	return call_end(&c, ret);
}

/* Volatile and aggregate ones are the same. */
EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t errorType,
						nvmlEccCounterType_t counterType, unsigned long long *eccCounts)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetTotalEccErrors, device);
	if (ret == NVML_SUCCESS && (!eccCounts || errorType >= NVML_MEMORY_ERROR_TYPE_COUNT || counterType >= NVML_ECC_COUNTER_TYPE_COUNT))
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS && !c.gpu->has_ecc)
		ret = NVML_ERROR_NOT_SUPPORTED;
	if (ret == NVML_SUCCESS)
		*eccCounts = errorType == NVML_MEMORY_ERROR_TYPE_CORRECTED ? c.gpu->ecc_errors.first : c.gpu->ecc_errors.second;
	return call_end(&c, ret);
}

/* Fields that are not described are Not Supported, each for itself. */
EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int valuesCount, nvmlFieldValue_t *values)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetFieldValues, device);
	if (ret == NVML_SUCCESS && (valuesCount <= 0 || !values))
		ret = NVML_ERROR_INVALID_ARGUMENT;
	for (int i = 0; ret == NVML_SUCCESS && i < valuesCount; i++) {
		values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
		for (unsigned int j = 0; j < c.gpu->field_count; j++)
			if (c.gpu->fields[j].id == values[i].fieldId) {
				values[i].nvmlReturn = NVML_SUCCESS;
				values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
				values[i].value.ullVal = c.gpu->fields[j].value;
			}
	}
	return call_end(&c, ret);
}

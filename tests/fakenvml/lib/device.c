/* Finding a GPU, who it is and where it sits. */
#include "fake.h"

#include <stdio.h>
#include <string.h>

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *deviceCount)
{
	struct call c;
	nvmlReturn_t ret = call_system(&c, CALL_GetCount);
	if (ret == NVML_SUCCESS)
		ret = answer(&c, deviceCount, c.world->gpu_count);
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int *deviceCount)
{
	return nvmlDeviceGetCount_v2(deviceCount);
}

/* Ends a look-up whose GPU is in c->gpu, NULL for none: then ret is missing. */
static nvmlReturn_t found(struct call *c, nvmlDevice_t *device, nvmlReturn_t missing)
{
	nvmlReturn_t ret = fault_hit(c);
	if (ret == NVML_SUCCESS && !device)
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS && !c->gpu)
		ret = missing;
	if (ret == NVML_SUCCESS)
		*device = handle_of(index_of(c), c->place);
	return call_end(c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	struct call c;
	nvmlReturn_t ret = call_begin(&c, CALL_GetHandleByIndex);
	if (ret != NVML_SUCCESS)
		return call_end(&c, ret);
	if (index < c.world->gpu_count)
		c.gpu = &c.world->gpus[index];
	return found(&c, device, NVML_ERROR_INVALID_ARGUMENT);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

/* Where the MIG device with a UUID is, -1: nowhere. */
static int mig_place(const struct gpu *g, const struct mig_split *split, const char *uuid)
{
	unsigned int instance, part;
	char name[NAME_SIZE];
	for (unsigned int place = 0; place < MAX_MIG; place++) {
		if (!split_device(split, place, &instance, &part))
			continue;
		split_uuid(g, place, name, sizeof name);
		if (strcmp(name, uuid) == 0)
			return (int)place;
	}
	return -1;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	struct call c;
	nvmlReturn_t ret = call_begin(&c, CALL_GetHandleByUUID);
	if (ret == NVML_SUCCESS && !uuid)
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret != NVML_SUCCESS)
		return call_end(&c, ret);
	for (unsigned int i = 0; i < c.world->gpu_count; i++) {
		struct gpu *g = &c.world->gpus[i];
		if (strcmp(g->uuid, uuid) == 0)
			c.gpu = g;
	}
	for (unsigned int i = 0; !c.gpu && i < c.world->gpu_count; i++) {
		c.gpu = &c.world->gpus[i];
		const struct mig_split *split = call_split(&c);
		c.place = split ? mig_place(c.gpu, split, uuid) : -1;
		if (c.place < 0)
			c.gpu = NULL;
	}
	return found(&c, device, NVML_ERROR_NOT_FOUND);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *pciBusId, nvmlDevice_t *device)
{
	struct call c;
	unsigned int domain = 0, bus = 0, slot = 0, function = 0;
	char end;
	nvmlReturn_t ret = call_begin(&c, CALL_GetHandleByPciBusId);
	if (ret == NVML_SUCCESS && !pciBusId)
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS && sscanf(pciBusId, "%x:%x:%x.%x%c", &domain, &bus, &slot, &function, &end) != 4 &&
	    sscanf(pciBusId, "%x:%x:%x%c", &domain, &bus, &slot, &end) != 3) {
		domain = 0;
		if (sscanf(pciBusId, "%x:%x.%x%c", &bus, &slot, &function, &end) != 3)
			ret = NVML_ERROR_INVALID_ARGUMENT;
	}
	if (ret != NVML_SUCCESS)
		return call_end(&c, ret);
	for (unsigned int i = 0; i < c.world->gpu_count; i++) {
		struct gpu *g = &c.world->gpus[i];
		if (g->domain == domain && g->bus == bus && g->device == slot && function == 0)
			c.gpu = g;
	}
	return found(&c, device, NVML_ERROR_NOT_FOUND);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *pciBusId, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByPciBusId_v2(pciBusId, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetIndex, device);
	if (ret == NVML_SUCCESS)
		ret = answer(&c, index, index_of(&c));
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
	struct call c;
	nvmlReturn_t ret = call_device(&c, CALL_GetUUID, device);
	char name[NAME_SIZE];
	if (ret == NVML_SUCCESS && c.place >= 0)
		split_uuid(c.gpu, (unsigned int)c.place, name, sizeof name);
	if (ret == NVML_SUCCESS)
		ret = answer_text(uuid, length, c.place < 0 ? c.gpu->uuid : name);
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
	struct call c;
	nvmlReturn_t ret = call_device(&c, CALL_GetName, device);
	if (ret == NVML_SUCCESS)
		ret = answer_text(name, length, c.gpu->name);
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minorNumber)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetMinorNumber, device);
	if (ret == NVML_SUCCESS)
		ret = answer(&c, minorNumber, c.gpu->minor);
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, nvmlDeviceArchitecture_t *arch)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetArchitecture, device);
	if (ret == NVML_SUCCESS)
		ret = answer(&c, arch, c.gpu->architecture);
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetPciInfo, device);
	if (ret == NVML_SUCCESS && !pci)
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS) {
		const struct gpu *g = c.gpu;
		*pci = (nvmlPciInfo_t){
			.domain = g->domain,
			.bus = g->bus,
			.device = g->device,
			.pciDeviceId = g->pci_id,
			.pciSubSystemId = g->pci_subsystem,
		};
		snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, NVML_DEVICE_PCI_BUS_ID_LEGACY_FMT,
			 g->domain & 0xffff, g->bus & 0xff, g->device & 0xff);
		snprintf(pci->busId, sizeof pci->busId, NVML_DEVICE_PCI_BUS_ID_FMT, g->domain, g->bus, g->device);
	}
	return call_end(&c, ret);
}

static nvmlReturn_t mask_answer(const struct mask *m, unsigned int size, unsigned long *out)
{
	if (size == 0 || !out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!m->known)
		return NVML_ERROR_NOT_SUPPORTED;
	for (unsigned int i = 0; i < size; i++)
		out[i] = i < MASK_WORDS ? m->words[i] : 0;
	return NVML_SUCCESS;
}

static bool scope_known(nvmlAffinityScope_t scope)
{
	return scope == NVML_AFFINITY_SCOPE_NODE || scope == NVML_AFFINITY_SCOPE_SOCKET;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int nodeSetSize, unsigned long *nodeSet,
						nvmlAffinityScope_t scope)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetMemoryAffinity, device);
	if (ret == NVML_SUCCESS && !scope_known(scope))
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS)
		ret = mask_answer(scope == NVML_AFFINITY_SCOPE_NODE ? &c.gpu->nodes : &c.gpu->nodes_socket, nodeSetSize,
				  nodeSet);
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int cpuSetSize, unsigned long *cpuSet)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetCpuAffinity, device);
	if (ret == NVML_SUCCESS)
		ret = mask_answer(&c.gpu->cpus, cpuSetSize, cpuSet);
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int cpuSetSize,
							unsigned long *cpuSet, nvmlAffinityScope_t scope)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetCpuAffinityWithinScope, device);
	if (ret == NVML_SUCCESS && !scope_known(scope))
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS)
		ret = mask_answer(scope == NVML_AFFINITY_SCOPE_NODE ? &c.gpu->cpus : &c.gpu->cpus_socket, cpuSetSize,
				  cpuSet);
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *node)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetNumaNodeId, device);
	if (ret == NVML_SUCCESS)
		ret = c.gpu->has_numa_node ? answer(&c, node, c.gpu->numa_node) : NVML_ERROR_NOT_SUPPORTED;
	return call_end(&c, ret);
}

/*
 * Clocks, in MHz. NVML has no call that reads a lock of clocks back: the state
 * file has it, and the clocks that the GPU runs at follow it.
 */
#include "fake.h"

/* Hands out a list whose length the caller may not know. */
static nvmlReturn_t list(const unsigned int clocks[], unsigned int have, unsigned int *count, unsigned int *out)
{
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	unsigned int room = out ? *count : 0;
	*count = have;
	if (room < have)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned int i = 0; i < have; i++)
		out[i] = clocks[i];
	return NVML_SUCCESS;
}

static bool memory_clock(const struct gpu *g, unsigned int clock)
{
	for (unsigned int i = 0; i < g->memory_clock_count; i++)
		if (g->memory_clocks[i] == clock)
			return true;
	return false;
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned int *count, unsigned int *clocksMHz)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetSupportedMemoryClocks, device);
	if (ret == NVML_SUCCESS && c.gpu->memory_clock_count == 0)
		ret = NVML_ERROR_NOT_SUPPORTED;
	if (ret == NVML_SUCCESS)
		ret = list(c.gpu->memory_clocks, c.gpu->memory_clock_count, count, clocksMHz);
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned int memoryClockMHz,
							 unsigned int *count, unsigned int *clocksMHz)
{
	struct call c;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetSupportedGraphicsClocks, device);
	if (ret == NVML_SUCCESS && c.gpu->clock_max == 0)
		ret = NVML_ERROR_NOT_SUPPORTED;
	if (ret == NVML_SUCCESS && !memory_clock(c.gpu, memoryClockMHz))
		ret = NVML_ERROR_NOT_FOUND;
	if (ret == NVML_SUCCESS && !count)
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret != NVML_SUCCESS)
		return call_end(&c, ret);
	const struct gpu *g = c.gpu;
	unsigned int room = clocksMHz ? *count : 0;
	*count = (g->clock_max - g->clock_min) / g->clock_step + 1;
	if (room < *count)
		return call_end(&c, NVML_ERROR_INSUFFICIENT_SIZE);
	for (unsigned int i = 0; i < *count; i++)
		clocksMHz[i] = g->clock_max - i * g->clock_step;
	return call_end(&c, NVML_SUCCESS);
}

static bool symbolic(unsigned int clock)
{
	return clock == NVML_CLOCK_LIMIT_ID_TDP || clock == NVML_CLOCK_LIMIT_ID_UNLIMITED;
}

/*
 * What nvml.h's table says: two numbers or two symbols; "unlimited" twice is a
 * reset. Numbers count as valid from the lowest to the highest clock, between
 * the steps too.
 */
static nvmlReturn_t lock(struct call *c, enum setting s, unsigned int lowest, unsigned int highest)
{
	struct value v = c->wanted;
	if (highest == 0)
		return NVML_ERROR_NOT_SUPPORTED;
	if (symbolic(v.first) != symbolic(v.second))
		return NVML_ERROR_INVALID_ARGUMENT;
	if (v.first == NVML_CLOCK_LIMIT_ID_UNLIMITED && v.second == NVML_CLOCK_LIMIT_ID_UNLIMITED)
		return state_change(c, s, (struct value){0});
	if (!symbolic(v.first) && (v.first < lowest || v.second > highest || v.first > v.second))
		return NVML_ERROR_INVALID_ARGUMENT;
	return state_change(c, s, v);
}

static unsigned int memory_lowest(const struct gpu *g)
{
	return g->memory_clock_count > 0 ? g->memory_clocks[g->memory_clock_count - 1] : 0;
}

static unsigned int memory_highest(const struct gpu *g)
{
	return g->memory_clock_count > 0 ? g->memory_clocks[0] : 0;
}

EXPORT nvmlReturn_t nvmlDeviceSetGpuLockedClocks(nvmlDevice_t device, unsigned int minGpuClockMHz,
						 unsigned int maxGpuClockMHz)
{
	struct call c;
	struct value wanted = {minGpuClockMHz, maxGpuClockMHz};
	nvmlReturn_t ret = call_change(&c, CALL_SetGpuLockedClocks, device, wanted);
	if (ret == NVML_SUCCESS)
		ret = lock(&c, GPU_CLOCKS, c.gpu->clock_min, c.gpu->clock_max);
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceResetGpuLockedClocks(nvmlDevice_t device)
{
	struct call c;
	nvmlReturn_t ret = call_change(&c, CALL_ResetGpuLockedClocks, device, (struct value){0});
	if (ret == NVML_SUCCESS)
		ret = c.gpu->clock_max == 0 ? NVML_ERROR_NOT_SUPPORTED : state_change(&c, GPU_CLOCKS, c.wanted);
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceSetMemoryLockedClocks(nvmlDevice_t device, unsigned int minMemClockMHz,
						    unsigned int maxMemClockMHz)
{
	struct call c;
	struct value wanted = {minMemClockMHz, maxMemClockMHz};
	nvmlReturn_t ret = call_change(&c, CALL_SetMemoryLockedClocks, device, wanted);
	if (ret == NVML_SUCCESS)
		ret = lock(&c, MEMORY_CLOCKS, memory_lowest(c.gpu), memory_highest(c.gpu));
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceResetMemoryLockedClocks(nvmlDevice_t device)
{
	struct call c;
	nvmlReturn_t ret = call_change(&c, CALL_ResetMemoryLockedClocks, device, (struct value){0});
	if (ret == NVML_SUCCESS)
		ret = c.gpu->memory_clock_count == 0 ? NVML_ERROR_NOT_SUPPORTED : state_change(&c, MEMORY_CLOCKS, c.wanted);
	return call_end(&c, ret);
}

static bool has_application_clocks(const struct gpu *g)
{
	return g->initial[APPLICATION_CLOCKS].second != 0 && g->clock_max != 0;
}

/* Only pairs that the GPU lists. */
EXPORT nvmlReturn_t nvmlDeviceSetApplicationsClocks(nvmlDevice_t device, unsigned int memClockMHz,
						    unsigned int graphicsClockMHz)
{
	struct call c;
	struct value wanted = {memClockMHz, graphicsClockMHz};
	nvmlReturn_t ret = call_change(&c, CALL_SetApplicationsClocks, device, wanted);
	if (ret != NVML_SUCCESS)
		return call_end(&c, ret);
	const struct gpu *g = c.gpu;
	if (!has_application_clocks(g))
		ret = NVML_ERROR_NOT_SUPPORTED;
	else if (!memory_clock(g, memClockMHz) || graphicsClockMHz < g->clock_min || graphicsClockMHz > g->clock_max ||
		 (g->clock_max - graphicsClockMHz) % g->clock_step != 0)
		ret = NVML_ERROR_INVALID_ARGUMENT;
	else
		ret = state_change(&c, APPLICATION_CLOCKS, wanted);
	return call_end(&c, ret);
}

EXPORT nvmlReturn_t nvmlDeviceResetApplicationsClocks(nvmlDevice_t device)
{
	struct call c;
	nvmlReturn_t ret = call_change(&c, CALL_ResetApplicationsClocks, device, (struct value){0});
	if (ret == NVML_SUCCESS && !has_application_clocks(c.gpu))
		ret = NVML_ERROR_NOT_SUPPORTED;
	if (ret == NVML_SUCCESS)
		ret = state_change(&c, APPLICATION_CLOCKS, c.gpu->initial[APPLICATION_CLOCKS]);
	return call_end(&c, ret);
}

/* The one of memory, graphics and video that a clock type means. */
static nvmlReturn_t of_type(nvmlClockType_t type, unsigned int memory, unsigned int graphics, unsigned int video,
			    unsigned int *clock)
{
	switch (type) {
	case NVML_CLOCK_GRAPHICS:
	case NVML_CLOCK_SM:
		*clock = graphics;
		break;
	case NVML_CLOCK_MEM:
		*clock = memory;
		break;
	case NVML_CLOCK_VIDEO:
		*clock = video;
		break;
	default:
		return NVML_ERROR_INVALID_ARGUMENT;
	}
	return *clock == 0 ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

/* A clock pulled into a lock. The TDP clock counts as the highest. */
static unsigned int locked(unsigned int clock, struct value v, unsigned int lowest, unsigned int highest)
{
	if (v.first == 0 && v.second == 0)
		return clock;
	unsigned int from = v.first == NVML_CLOCK_LIMIT_ID_UNLIMITED ? lowest : symbolic(v.first) ? highest : v.first;
	unsigned int to = symbolic(v.second) ? highest : v.second;
	return clock < from ? from : clock > to ? to : clock;
}

/*
 * A GPU without processes idles at its lowest clock, one with processes runs
 * at its application clock, and a lock overrules both. Between two steps the
 * lower one holds.
 */
static nvmlReturn_t current(const struct call *c, nvmlClockType_t type, unsigned int *clock)
{
	struct state st;
	const struct gpu *g = c->gpu;
	nvmlReturn_t ret = state_read(c->world, &st);
	if (ret != NVML_SUCCESS)
		return ret;
	const struct value *set = st.values[index_of(c)];
	unsigned int graphics = 0;
	if (g->clock_max != 0) {
		graphics = g->process_count == 0 ? g->clock_min
			   : has_application_clocks(g) ? set[APPLICATION_CLOCKS].second
						       : g->clock_max;
		graphics = locked(graphics, set[GPU_CLOCKS], g->clock_min, g->clock_max);
		graphics -= graphics < g->clock_min ? 0 : (graphics - g->clock_min) % g->clock_step;
	}
	unsigned int memory = locked(memory_highest(g), set[MEMORY_CLOCKS], memory_lowest(g), memory_highest(g));
	/* Asked for a clock that there is not, this call alone answers so. */
	if ((unsigned int)type >= NVML_CLOCK_COUNT)
		return NVML_ERROR_NOT_SUPPORTED;
	return of_type(type, memory, graphics, g->video_max == 0 ? 0 : g->video_min, clock);
}

static nvmlReturn_t clock_end(struct call *c, nvmlReturn_t ret, unsigned int *out, unsigned int clock)
{
	return call_end(c, ret == NVML_SUCCESS ? answer(c, out, clock) : ret);
}

EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
	struct call c;
	unsigned int found = 0;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetClockInfo, device);
	if (ret == NVML_SUCCESS)
		ret = current(&c, type, &found);
	return clock_end(&c, ret, clock, found);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
	struct call c;
	unsigned int found = 0;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetMaxClockInfo, device);
	if (ret == NVML_SUCCESS)
		ret = of_type(type, memory_highest(c.gpu), c.gpu->clock_max, c.gpu->video_max, &found);
	return clock_end(&c, ret, clock, found);
}

EXPORT nvmlReturn_t nvmlDeviceGetMinMaxClockOfPState(nvmlDevice_t device, nvmlClockType_t type, nvmlPstates_t pstate,
						     unsigned int *minClockMHz, unsigned int *maxClockMHz)
{
	struct call c;
	struct value range = {0};
	nvmlReturn_t ret = call_gpu(&c, CALL_GetMinMaxClockOfPState, device);
	if (ret == NVML_SUCCESS && (unsigned int)pstate > NVML_PSTATE_15)
		ret = NVML_ERROR_INVALID_ARGUMENT;
	if (ret == NVML_SUCCESS) {
		/* The memory has one clock in each state: the highest in P0, the lowest in the others. */
		unsigned int memory = pstate == NVML_PSTATE_0 ? memory_highest(c.gpu) : memory_lowest(c.gpu);
		ret = of_type(type, memory, c.gpu->clock_min, c.gpu->video_min, &range.first);
		if (ret == NVML_SUCCESS)
			ret = of_type(type, memory, c.gpu->clock_max, c.gpu->video_max, &range.second);
	}
	if (ret == NVML_SUCCESS)
		ret = answer_two(&c, minClockMHz, maxClockMHz, range);
	return call_end(&c, ret);
}

/* Application clocks: those that are set or those described. */
static nvmlReturn_t application(const struct call *c, bool as_described, nvmlClockType_t type, unsigned int *clock)
{
	struct state st;
	if (!has_application_clocks(c->gpu))
		return NVML_ERROR_NOT_SUPPORTED;
	nvmlReturn_t ret = state_read(c->world, &st);
	if (ret != NVML_SUCCESS)
		return ret;
	struct value v = (as_described ? c->gpu->initial : st.values[index_of(c)])[APPLICATION_CLOCKS];
	return of_type(type, v.first, v.second, 0, clock);
}

EXPORT nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, nvmlClockType_t clockType,
						   unsigned int *clockMHz)
{
	struct call c;
	unsigned int found = 0;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetApplicationsClock, device);
	if (ret == NVML_SUCCESS)
		ret = application(&c, false, clockType, &found);
	return clock_end(&c, ret, clockMHz, found);
}

EXPORT nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, nvmlClockType_t clockType,
							  unsigned int *clockMHz)
{
	struct call c;
	unsigned int found = 0;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetDefaultApplicationsClock, device);
	if (ret == NVML_SUCCESS)
		ret = application(&c, true, clockType, &found);
	return clock_end(&c, ret, clockMHz, found);
}

EXPORT nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t clockType, nvmlClockId_t clockId,
				       unsigned int *clockMHz)
{
	struct call c;
	unsigned int found = 0;
	nvmlReturn_t ret = call_gpu(&c, CALL_GetClock, device);
	if (ret == NVML_SUCCESS)
		switch (clockId) {
		case NVML_CLOCK_ID_CURRENT:
			ret = current(&c, clockType, &found);
			break;
		case NVML_CLOCK_ID_APP_CLOCK_TARGET:
		case NVML_CLOCK_ID_APP_CLOCK_DEFAULT:
			ret = application(&c, clockId == NVML_CLOCK_ID_APP_CLOCK_DEFAULT, clockType, &found);
			break;
		case NVML_CLOCK_ID_CUSTOMER_BOOST_MAX:
			ret = of_type(clockType, memory_highest(c.gpu), c.gpu->clock_max, c.gpu->video_max, &found);
			break;
		default:
			ret = NVML_ERROR_INVALID_ARGUMENT;
		}
	return clock_end(&c, ret, clockMHz, found);
}

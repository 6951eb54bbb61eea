/* Tables of what GPUs can be split into. */
#include "mig_profiles.h"

static const struct profile hopper[] = {
	{NVML_GPU_INSTANCE_PROFILE_1_SLICE, 19, 1, 7, 16, 16384, 1, 7, "1g.18gb"},
	{NVML_GPU_INSTANCE_PROFILE_2_SLICE, 14, 2, 3, 32, 33280, 2, 3, "2g.35gb"},
	{NVML_GPU_INSTANCE_PROFILE_3_SLICE, 9, 3, 2, 60, 71424, 4, 2, "3g.71gb"},
	{NVML_GPU_INSTANCE_PROFILE_4_SLICE, 5, 4, 1, 64, 71424, 4, 1, "4g.71gb"},
	{NVML_GPU_INSTANCE_PROFILE_7_SLICE, 0, 7, 1, 132, 143360, 8, 1, "7g.141gb"},
	{NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1, 20, 1, 1, 16, 16384, 1, 7, "1g.18gb+me"},
	{NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2, 15, 1, 4, 26, 33280, 2, 4, "1g.35gb"},
};

static const struct profile ampere[] = {
	{NVML_GPU_INSTANCE_PROFILE_1_SLICE, 19, 1, 7, 14, 4864, 1, 7, "1g.5gb"},
	{NVML_GPU_INSTANCE_PROFILE_2_SLICE, 14, 2, 3, 28, 9856, 2, 3, "2g.10gb"},
	{NVML_GPU_INSTANCE_PROFILE_3_SLICE, 9, 3, 2, 42, 19968, 4, 2, "3g.20gb"},
	{NVML_GPU_INSTANCE_PROFILE_4_SLICE, 5, 4, 1, 56, 19968, 4, 1, "4g.20gb"},
	{NVML_GPU_INSTANCE_PROFILE_7_SLICE, 0, 7, 1, 98, 40192, 8, 1, "7g.40gb"},
	{NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1, 20, 1, 1, 14, 4864, 1, 7, "1g.5gb+me"},
	{NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2, 15, 1, 4, 14, 9856, 2, 4, "1g.10gb"},
};

static const struct profile *table(const struct gpu *g, size_t *length)
{
	*length = LENGTH(hopper);
	if (!g->has_mig)
		*length = 0;
	return g->architecture < NVML_DEVICE_ARCH_HOPPER ? ampere : hopper;
}

const struct profile *profile_numbered(const struct gpu *g, unsigned int number)
{
	size_t length;
	const struct profile *list = table(g, &length);
	for (size_t i = 0; i < length; i++)
		if (list[i].number == number)
			return &list[i];
	return NULL;
}

const struct profile *profile_with_id(const struct gpu *g, unsigned int id)
{
	size_t length;
	const struct profile *list = table(g, &length);
	for (size_t i = 0; i < length; i++)
		if (list[i].id == id)
			return &list[i];
	return NULL;
}

bool part_profile(const struct profile *p, unsigned int number, struct part_profile *out)
{
	static const unsigned int slices[] = {1, 2, 3, 4, 7};
	if (number >= LENGTH(slices) || slices[number] > p->slices || (slices[number] == 3 && p->slices == 4))
		return false;
	unsigned int n = slices[number], step = n == 3 ? 4 : n;
	*out = (struct part_profile){n, step, (p->slices - n) / step + 1};
	return true;
}

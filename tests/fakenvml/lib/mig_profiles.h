/*
 * What a GPU can be split into. An H200 answered the first table, and that
 * profiles and places are told in either mode; the A100's is from NVIDIA's guide
 * to MIG. Compute profiles are from the guide, too.
 */
#ifndef FAKENVML_MIG_PROFILES_H
#define FAKENVML_MIG_PROFILES_H

#include "fake.h"

enum { PROFILE_NUMBERS = 17 }; /* those that driver 580 knows, most of them on no H200 */

struct profile {
	unsigned int number, id, slices, count, multiprocessors, memory; /* MiB */
	unsigned int size, places;					  /* slices of memory; the first is 0 */
	const char *name;
};

const struct profile *profile_numbered(const struct gpu *g, unsigned int number);
const struct profile *profile_with_id(const struct gpu *g, unsigned int id);

/* A kind of compute instances of a GPU instance: number and id are the same. */
struct part_profile {
	unsigned int slices, step, places;
};

bool part_profile(const struct profile *p, unsigned int number, struct part_profile *out);

#endif

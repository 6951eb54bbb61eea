/* How a GPU is split: as text, and what follows from where an instance is. */
#include "fake.h"

#include <stdio.h>
#include <string.h>

/*
 * The id of the GPU instance at a place, which a real card gives by the place,
 * too: 0 for all of it, 1 and 2 for its halves, and so on. The assignment within
 * a size is assumed.
 */
unsigned int instance_id(unsigned int start, unsigned int size)
{
	switch (size) {
	case 8:
		return 0;
	case 4:
		return start < 4 ? 2 : 1;
	case 2:
		return start < 4 ? 5 + start / 2 % 2 : 3 + start / 2 % 2;
	default:
		return start < 4 ? (11 + start) % MAX_INSTANCES : (3 + start) % MAX_INSTANCES;
	}
}

/* "19@0:1" */
static bool part_parse(char *text, struct mig_part *part)
{
	unsigned long long profile, start, size;
	char *at = strchr(text, '@'), *colon = strchr(text, ':');
	if (!at || !colon || colon < at)
		return false;
	*at++ = '\0';
	*colon++ = '\0';
	if (!text_number(text, 255, &profile) || !text_number(at, MAX_MIG - 1, &start) ||
	    !text_number(colon, MAX_MIG, &size) || size == 0)
		return false;
	*part = (struct mig_part){true, (unsigned int)profile, (unsigned int)start, (unsigned int)size};
	return true;
}

/* "19@0:1/0@0:1;9@4:4", GPU instances and after them their compute instances, or "none". */
bool split_parse(char *text, struct mig_split *split)
{
	memset(split->instances, 0, sizeof split->instances);
	if (strcmp(text, "none") == 0)
		return true;
	char *rest = text, *item;
	while ((item = strsep(&rest, ";"))) {
		struct mig_part is;
		char *parts = item, *word = strsep(&parts, "/");
		if (!part_parse(word, &is))
			return false;
		struct mig_instance *instance = &split->instances[instance_id(is.start, is.size)];
		if (instance->is.used)
			return false;
		instance->is = is;
		for (unsigned int id = 0; (word = strsep(&parts, "/")); id++)
			/* "-": an id that is free below one that is taken */
			if (id == MAX_MIG || (strcmp(word, "-") != 0 && !part_parse(word, &instance->parts[id])))
				return false;
	}
	return true;
}

void split_text(const struct mig_split *split, char *out, size_t size)
{
	size_t n = 0;
	snprintf(out, size, "none");
	for (unsigned int id = 0; id < MAX_INSTANCES; id++) {
		const struct mig_instance *instance = &split->instances[id];
		if (!instance->is.used)
			continue;
		n += (size_t)snprintf(out + n, size - n, "%s%u@%u:%u", n > 0 ? ";" : "", instance->is.profile,
				      instance->is.start, instance->is.size);
		unsigned int last = 0;
		for (unsigned int part = 0; part < MAX_MIG; part++)
			if (instance->parts[part].used)
				last = part + 1;
		for (unsigned int part = 0; part < last; part++) {
			const struct mig_part *p = &instance->parts[part];
			if (p->used)
				n += (size_t)snprintf(out + n, size - n, "/%u@%u:%u", p->profile, p->start, p->size);
			else
				n += (size_t)snprintf(out + n, size - n, "/-");
		}
	}
}

/* The compute instance that is the MIG device at a place, if there is one. */
bool split_device(const struct mig_split *split, unsigned int place, unsigned int *instance, unsigned int *part)
{
	if (split->now != NVML_DEVICE_MIG_ENABLE)
		return false;
	for (*instance = 0; *instance < MAX_INSTANCES; ++*instance)
		for (*part = 0; *part < MAX_MIG; ++*part) {
			const struct mig_instance *is = &split->instances[*instance];
			if (is->is.used && is->parts[*part].used && is->is.start + is->parts[*part].start == place)
				return true;
		}
	return false;
}

/* The UUID of the MIG device at a place: the described one, else one made of GPU and place. */
void split_uuid(const struct gpu *g, unsigned int place, char *out, size_t size)
{
	unsigned long hash = 5381;
	if (g->mig_uuid[place][0] != '\0') {
		snprintf(out, size, "%s", g->mig_uuid[place]);
		return;
	}
	for (const char *p = g->uuid; *p != '\0'; p++)
		hash = hash * 33 + (unsigned char)*p;
	snprintf(out, size, "MIG-%08lx-0000-5000-8000-%012x", hash & 0xffffffff, place);
}

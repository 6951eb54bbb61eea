/* Masks, lists and names as text, for code that runs between fork and exec. */
#include <string.h>

#include "shim.h"

struct text text_in(char *buffer, size_t size)
{
	buffer[0] = '\0';
	return (struct text){ .start = buffer, .size = size };
}

void text_add(struct text *text, const char *string)
{
	while (*string && text->used + 1 < text->size)
		text->start[text->used++] = *string++;
	text->start[text->used] = '\0';
	if (*string)
		text->cut = true;
}

void text_add_number(struct text *text, uint64_t number)
{
	char digits[21];
	char *at = digits + sizeof(digits) - 1;

	*at = '\0';
	do {
		*--at = (char)('0' + number % 10);
		number /= 10;
	} while (number);
	text_add(text, at);
}

static bool bit(const uint64_t *words, size_t count, size_t i)
{
	return i / 64 < count && (words[i / 64] >> (i % 64) & 1);
}

/* The kernel's list form, "0-3,8". */
void text_add_list(struct text *text, const uint64_t *words, size_t count)
{
	bool first = true;

	for (size_t i = 0; i < count * 64; i++) {
		size_t last = i;

		if (i % 64 == 0 && words[i / 64] == 0) {
			i += 63;
			continue;
		}
		if (!bit(words, count, i))
			continue;
		while (bit(words, count, last + 1))
			last++;
		if (!first)
			text_add(text, ",");
		text_add_number(text, i);
		if (last > i) {
			text_add(text, "-");
			text_add_number(text, last);
		}
		first = false;
		i = last;
	}
}

/* FNV-1a */
uint64_t text_hash(const char *string)
{
	uint64_t hash = 0xcbf29ce484222325;

	while (*string) {
		hash ^= (unsigned char)*string++;
		hash *= 0x100000001b3;
	}
	return hash;
}

/* Whether item is one of the comma-separated items. */
bool items_have(const char *items, const char *item)
{
	size_t length = strlen(item);

	while (*items) {
		size_t i = 0;

		while (i < length && items[i] == item[i])
			i++;
		if (i == length && (items[i] == ',' || items[i] == '\0'))
			return true;
		while (*items && *items != ',')
			items++;
		if (*items)
			items++;
	}
	return false;
}

static bool has_prefix(const char *string, const char *prefix, size_t length)
{
	for (size_t i = 0; i < length; i++) {
		char a = string[i], b = prefix[i];

		/* CUDA compares UUIDs without regard to case. */
		if (a >= 'A' && a <= 'Z')
			a = (char)(a - 'A' + 'a');
		if (b >= 'A' && b <= 'Z')
			b = (char)(b - 'A' + 'a');
		if (a == '\0' || a != b)
			return false;
	}
	return true;
}

/*
 * The GPU that a number means: to CUDA the position, by PCI address, among those
 * that the task sees; in a list of Slurm's own where devices are not constrained,
 * Slurm's gres index. Returns -1 for none.
 */
static int device_numbered(const struct gputune_page *page, uint64_t sees, bool absolute, uint64_t number)
{
	if (absolute)
		return number < page->orders ? page->order[number] : -1;
	for (int gpu = 0; gpu < GPUTUNE_MAX_GPUS; gpu++)
		if (sees >> gpu & 1 && number-- == 0)
			return gpu;
	return -1;
}

/* Whether an entry is a number, which may have spaces around it. */
static bool is_number(const char *entry, size_t length, uint64_t *number)
{
	size_t first = 0, i;

	while (first < length && entry[first] == ' ')
		first++;
	while (length > first && entry[length - 1] == ' ')
		length--;
	*number = 0;
	for (i = first; i < length && entry[i] >= '0' && entry[i] <= '9' && *number < 1000000; i++)
		*number = *number * 10 + (uint64_t)(entry[i] - '0');
	return i == length && length > first;
}

/* The GPU that a UUID or its first part names, -1 for none. split is set for that of a MIG device. */
static int device_named(const struct gputune_page *page, uint64_t sees, const char *entry, size_t length, bool *split)
{
	int found = -1;

	*split = false;
	for (uint32_t gpu = 0; gpu < page->gpus; gpu++) {
		bool named = false, mig = false;

		if (!(sees >> gpu & 1))
			continue;
		if (length > 4)
			named = has_prefix(page->gpu[gpu].uuid, entry, length);
		/* MIG-<uuid>; before driver 470 MIG-GPU-<uuid of the GPU>/instance/instance */
		for (int m = 0; length > 4 && !named && m < GPUTUNE_MAX_MIG; m++)
			named = mig = has_prefix(page->gpu[gpu].mig[m], entry, length);
		if (!named && length > 8 && has_prefix("MIG-GPU-", entry, 8)) {
			size_t uuid = 4;

			while (uuid < length && entry[uuid] != '/')
				uuid++;
			named = mig = uuid > 8 && has_prefix(page->gpu[gpu].uuid, entry + 4, uuid - 4);
		}
		if (!named)
			continue;
		if (found >= 0)
			return -1; /* the prefix fits two GPUs */
		found = (int)gpu;
		*split = mig;
	}
	return found;
}

struct devices devices_all(uint64_t set)
{
	struct devices all = { .gpus = set, .numbers = true };

	for (uint8_t gpu = 0; gpu < GPUTUNE_MAX_GPUS; gpu++)
		if (set >> gpu & 1)
			all.at[all.count++] = gpu;
	return all;
}

/*
 * The GPUs that CUDA_VISIBLE_DEVICES names out of sees, in the order in which a
 * CUDA program counts them. At an entry that it cannot use CUDA stops, and so
 * where numbers change to UUIDs or back; with one GPU twice it gives none at all
 * (seen with driver 580). What is wrong is in why.
 */
struct devices devices_listed(const struct gputune_page *page, uint64_t sees, bool absolute, const char *list)
{
	struct devices listed = { 0 };
	bool twice = false;

	if (strcmp(list, "NoDevFiles") == 0)
		return listed;
	while (*list) {
		size_t length = 0;
		uint64_t number;
		bool split = false, is;
		int gpu;

		while (list[length] && list[length] != ',')
			length++;
		if (list[0] == '-') /* CUDA: a number below zero ends the list */
			break;
		is = is_number(list, length, &number);
		gpu = is ? device_numbered(page, sees, absolute, number) : device_named(page, sees, list, length, &split);
		if (gpu < 0)
			listed.why = " names a GPU that is not known: CUDA stops there";
		else if (listed.count && is != listed.numbers)
			listed.why = " has numbers and UUIDs: CUDA stops where they change";
		if (listed.why)
			return listed;
		listed.numbers = is;
		if (!(listed.gpus >> gpu & 1)) {
			listed.gpus |= 1ULL << gpu;
			listed.at[listed.count++] = (uint8_t)gpu;
		} else {
			twice = twice || !split;
		}
		list += length;
		if (*list)
			list++;
	}
	if (twice)
		listed.why = " names a GPU twice: CUDA gives its programs none then";
	return listed;
}

/* Whether the GPUs are counted by their addresses, as without a list. */
bool devices_in_order(const struct devices *devices)
{
	for (uint32_t i = 1; i < devices->count; i++)
		if (devices->at[i - 1] > devices->at[i])
			return false;
	return true;
}

/* How many numbers a list like "0-3,8" has. Whatever else is between two commas counts as one. */
uint32_t list_length(const char *list)
{
	uint32_t length = 0;

	while (*list) {
		unsigned long first = 0, last;
		bool number = *list >= '0' && *list <= '9';

		for (; *list >= '0' && *list <= '9'; list++)
			first = first * 10 + (unsigned long)(*list - '0');
		last = first;
		if (number && *list == '-')
			for (last = 0, list++; *list >= '0' && *list <= '9'; list++)
				last = last * 10 + (unsigned long)(*list - '0');
		length += last > first && last - first < GPUTUNE_MAX_ORDER ? (uint32_t)(last - first) + 1 : 1;
		list += strcspn(list, ",");
		if (*list)
			list++;
	}
	return length;
}

/* What each task gets of a GPU, in percent, if tasks share GPUs evenly: 100 by those on the fullest GPU,
 * rounded down, at least 1. */
uint32_t even_share(uint32_t tasks, uint32_t gpus)
{
	uint32_t each;

	if (!gpus || tasks <= gpus)
		return 100;
	each = tasks / gpus + (tasks % gpus != 0);
	return each < 100 ? 100 / each : 1;
}

/*
 * gpus=auto: the block of GPUs that belongs to the task of this rank, in the order
 * in which it counts them, where every task sees the same (common) or, as far as
 * this one can tell, all GPUs of the step, and their number is a multiple of the
 * tasks'; else all that the task sees. The same rule as the core's.
 */
uint64_t gpus_paired(const struct devices *sees, bool common, uint64_t step, uint32_t tasks, uint32_t rank)
{
	uint32_t block;
	uint64_t paired = 0;

	if (tasks < 2 || sees->count < 2 || sees->count % tasks || !(common || sees->gpus == step) || rank >= tasks)
		return sees->gpus;
	block = sees->count / tasks;
	for (uint32_t i = rank * block; i < (rank + 1) * block; i++)
		paired |= 1ULL << sees->at[i];
	return paired;
}

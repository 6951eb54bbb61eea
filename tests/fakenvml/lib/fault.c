/* Scripted faults: lines "fault CALL …" of the description or the faults file. */
#include "fake.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CALL_KIND(name, gpu, numbers, sets) {#name, gpu, numbers, sets},
const struct call_kind call_kinds[CALL_COUNT] = {CALLS(CALL_KIND)};
#undef CALL_KIND

static bool matches(const struct fault *f, const struct call_kind *kind)
{
	return fnmatch(f->pattern, kind->name, 0) == 0;
}

/* "nvmlDeviceGetCount_v2", "DeviceGetCount" and "GetCount" mean the same. */
static bool name_pattern(const char *word, char *out, size_t size)
{
	if (strncmp(word, "nvml", 4) == 0)
		word += 4;
	if (strncmp(word, "Device", 6) == 0)
		word += 6;
	size_t length = strlen(word);
	if (length > 3 && word[length - 3] == '_' && word[length - 2] == 'v')
		length -= 3;
	if (length == 0 || length >= size)
		return false;
	memcpy(out, word, length);
	out[length] = '\0';
	return true;
}

static bool copy(char *out, size_t size, const char *text)
{
	size_t length = strlen(text);
	if (length == 0 || length >= size)
		return false;
	memcpy(out, text, length + 1);
	return true;
}

/* "3", "3-" or "3-5". */
static bool nth(char *text, struct fault *f)
{
	unsigned long long first, last;
	char *dash = strchr(text, '-');
	if (dash)
		*dash++ = '\0';
	if (!text_number(text, UINT_MAX, &first) || first == 0)
		return false;
	last = dash ? UINT_MAX : first;
	if (dash && *dash != '\0' && !text_number(dash, UINT_MAX, &last))
		return false;
	f->first = (unsigned int)first;
	f->last = (unsigned int)last;
	return last >= first;
}

/* "3" or "3,4". */
static bool value(char *text, struct fault *f, unsigned int *count)
{
	unsigned long long first, second = 0;
	char *comma = strchr(text, ',');
	if (comma)
		*comma++ = '\0';
	if (!text_number(text, UINT_MAX, &first) || (comma && !text_number(comma, UINT_MAX, &second)))
		return false;
	f->valued = true;
	f->value = (struct value){(unsigned int)first, (unsigned int)second};
	*count = comma ? 2 : 1;
	return true;
}

/* A fault that could never hit is a mistake in a test, so it is refused. */
static bool check(const struct world *w, const struct fault *f, unsigned int values, char *why, size_t size)
{
	unsigned int calls = 0;
	for (size_t i = 0; i < LENGTH(call_kinds); i++) {
		const struct call_kind *kind = &call_kinds[i];
		if (!matches(f, kind) || (f->gpu[0] && !kind->gpu))
			continue;
		calls++;
		if (f->valued && kind->numbers != values) {
			snprintf(why, size, "value: %s has %u number%s", kind->name, kind->numbers,
				 kind->numbers == 1 ? "" : "s");
			return false;
		}
		if ((f->ignored || f->applied) && !kind->sets) {
			snprintf(why, size, "ignored, applied: %s sets nothing", kind->name);
			return false;
		}
	}
	if (calls == 0) {
		snprintf(why, size, "no call%s matches \"%s\"", f->gpu[0] ? " about a GPU" : "", f->pattern);
		return false;
	}
	if (f->applied && !f->fails) {
		snprintf(why, size, "applied: want error=NAME with it");
		return false;
	}
	if (f->ignored && (f->applied || f->valued)) {
		snprintf(why, size, "ignored: want neither applied nor value with it");
		return false;
	}
	if (!f->fails && !f->valued && !f->ignored && f->slow == 0) {
		snprintf(why, size, "want error=NAME, value=N[,N], ignored or slow=MS");
		return false;
	}
	bool known = f->gpu[0] == '\0';
	unsigned long long index;
	for (unsigned int i = 0; i < w->gpu_count; i++)
		known = known || strcmp(f->gpu, w->gpus[i].uuid) == 0 ||
			(text_number(f->gpu, UINT_MAX, &index) && index == i);
	if (!known)
		snprintf(why, size, "gpu=%s: no such GPU above", f->gpu);
	return known;
}

bool fault_parse(struct world *w, char *text, struct fault *f, char *why, size_t size)
{
	unsigned int values = 0;
	unsigned long long ms;
	char *word = text_word(&text);
	if (!word || !name_pattern(word, f->pattern, sizeof f->pattern)) {
		snprintf(why, size, "fault: want the name of a call");
		return false;
	}
	while ((word = text_word(&text))) {
		char whole[64];
		snprintf(whole, sizeof whole, "%s", word);
		char *is = strchr(word, '=');
		char *said = is ? is + 1 : word + strlen(word);
		size_t key = is ? (size_t)(is - word) : strlen(word);
#define IS(name) (strlen(name) == key && strncmp(word, name, key) == 0)
		bool good = false;
		if (IS("gpu"))
			good = copy(f->gpu, sizeof f->gpu, said);
		else if (IS("program"))
			good = copy(f->program, sizeof f->program, said);
		else if (IS("nth"))
			good = nth(said, f);
		else if (IS("slow") && (good = text_number(said, UINT_MAX, &ms)))
			f->slow = (unsigned int)ms;
		else if (IS("error"))
			good = f->fails = return_named(said, &f->error) && f->error != NVML_SUCCESS;
		else if (IS("value"))
			good = value(said, f, &values);
		else if (IS("ignored") && !is)
			good = f->ignored = true;
		else if (IS("applied") && !is)
			good = f->applied = true;
#undef IS
		if (!good) {
			snprintf(why, size, "fault %s: \"%s\" is not understood", f->pattern, whole);
			return false;
		}
	}
	return check(w, f, values, why, size);
}

static bool hits(const struct call *c, const struct fault *f)
{
	if (!matches(f, &call_kinds[c->name]))
		return false;
	if (f->program[0] && strcmp(f->program, program_invocation_short_name) != 0)
		return false;
	if (f->gpu[0] == '\0')
		return true;
	if (!c->gpu)
		return false;
	unsigned long long index;
	if (text_number(f->gpu, UINT_MAX, &index))
		return index == index_of(c);
	return strcmp(f->gpu, c->gpu->uuid) == 0;
}

/*
 * Counts one use of each line that is due, and tells which use it is. Counts
 * are shared by all processes and begin anew when the description or the
 * faults file changes.
 */
static bool count_uses(const struct world *w, const bool due[], unsigned int use[])
{
	char path[PATH_MAX + 8];
	snprintf(path, sizeof path, "%s.uses", w->state);
	int lock = state_lock(w);
	if (lock < 0)
		return false;
	bool good = false;
	size_t size = sizeof w->identity + 16 * (MAX_FAULTS + 1);
	char *new_text = malloc(size);
	char *old = text_read(path, NULL, 0);
	if (!new_text)
		goto out;
	size_t identity = strlen(w->identity);
	char *rest = old;
	if (!old || strncmp(old, w->identity, identity) != 0 || old[identity] != '\n')
		rest = NULL;
	else
		rest = old + identity;
	size_t n = (size_t)snprintf(new_text, size, "%s\n", w->identity);
	for (unsigned int i = 0; i < w->fault_count; i++) {
		unsigned long count = 0;
		if (rest)
			count = strtoul(rest, &rest, 10);
		if (due[i])
			use[i] = (unsigned int)++count;
		n += (size_t)snprintf(new_text + n, size - n, "%lu\n", count);
	}
	good = state_replace(path, new_text, n);
out:
	free(new_text);
	free(old);
	state_unlock(lock);
	return good;
}

static void wait_ms(unsigned int ms)
{
	struct timespec left = {ms / 1000, (long)(ms % 1000) * 1000000};
	while (nanosleep(&left, &left) < 0 && errno == EINTR)
		;
}

/*
 * Puts what the faults that hit do together into c->fault, waits, and returns
 * the error of one that fails before doing anything. Nothing is locked while
 * it waits: a slow GPU slows nobody else.
 */
nvmlReturn_t fault_hit(struct call *c)
{
	const struct world *w = c->world;
	bool hit[MAX_FAULTS] = {false}, due[MAX_FAULTS] = {false};
	unsigned int use[MAX_FAULTS] = {0};
	bool counted = false;
	for (unsigned int i = 0; i < w->fault_count; i++) {
		hit[i] = hits(c, &w->faults[i]);
		due[i] = hit[i] && w->faults[i].first > 0;
		counted = counted || due[i];
	}
	if (counted && !count_uses(w, due, use))
		return NVML_ERROR_UNKNOWN;

	unsigned int slow = 0;
	bool decided = false;
	for (unsigned int i = 0; i < w->fault_count; i++) {
		const struct fault *f = &w->faults[i];
		if (!hit[i] || (due[i] && (use[i] < f->first || use[i] > f->last)))
			continue;
		slow += f->slow;
		if (!decided && (f->fails || f->valued || f->ignored)) {
			c->fault = *f;
			decided = true;
		}
	}
	if (slow > 0)
		wait_ms(slow);
	return decided && c->fault.fails && !c->fault.applied ? c->fault.error : NVML_SUCCESS;
}

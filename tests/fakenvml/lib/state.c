/*
 * The state file: what one process sets and another finds, one "key value" per
 * line in a fixed order, so that equal bytes mean equal state. It is replaced
 * whole, by rename and under a lock, so that a reader needs no lock and a
 * process killed at any point leaves the old state or the new.
 */
#include "fake.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct {
	const char *key;
	bool pair;
} kinds[SETTINGS] = {
	[POWER_LIMIT] = {"power_limit", false},
	[GPU_CLOCKS] = {"gpu_clocks", true},
	[MEMORY_CLOCKS] = {"memory_clocks", true},
	[APPLICATION_CLOCKS] = {"application_clocks", true},
	[PERSISTENCE] = {"persistence", false},
	[COMPUTE_MODE] = {"compute_mode", false},
};

/* The lock's descriptor, -1 after a complaint. The kernel frees it with the process. */
int state_lock(const struct world *w)
{
	char path[PATH_MAX + 8];
	snprintf(path, sizeof path, "%s.lock", w->state);
	/* First without O_CREAT, which a sticky folder refuses to all but the file's owner. */
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT)
		fd = open(path, O_RDONLY | O_CREAT | O_CLOEXEC, 0644);
	if (fd < 0) {
		complain("%s: %s", path, strerror(errno));
		return -1;
	}
	while (flock(fd, LOCK_EX) < 0)
		if (errno != EINTR) {
			complain("%s: %s", path, strerror(errno));
			close(fd);
			return -1;
		}
	return fd;
}

void state_unlock(int lock)
{
	close(lock);
}

static bool write_all(int fd, const char *text, size_t length)
{
	while (length > 0) {
		ssize_t n = write(fd, text, length);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return false;
		text += n;
		length -= (size_t)n;
	}
	return true;
}

/* The caller holds the lock: there is one temporary file per name. */
bool state_replace(const char *path, const char *text, size_t length)
{
	char temp[PATH_MAX + 16];
	snprintf(temp, sizeof temp, "%s.tmp", path);
	int fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	bool good = fd >= 0 && fchmod(fd, 0644) == 0 && write_all(fd, text, length);
	if (fd >= 0 && close(fd) < 0)
		good = false;
	if (good && rename(temp, path) == 0)
		return true;
	complain("%s: %s", path, strerror(errno));
	return false;
}

static void limit_text(unsigned int clock, char *out, size_t size)
{
	if (clock == NVML_CLOCK_LIMIT_ID_TDP)
		snprintf(out, size, "tdp");
	else if (clock == NVML_CLOCK_LIMIT_ID_UNLIMITED)
		snprintf(out, size, "unlimited");
	else
		snprintf(out, size, "%u", clock);
}

static bool limit_parse(const char *word, unsigned int *out)
{
	unsigned long long n;
	if (strcmp(word, "tdp") == 0)
		n = NVML_CLOCK_LIMIT_ID_TDP;
	else if (strcmp(word, "unlimited") == 0)
		n = NVML_CLOCK_LIMIT_ID_UNLIMITED;
	else if (!text_number(word, UINT_MAX, &n))
		return false;
	*out = (unsigned int)n;
	return true;
}

/* "700000", "none" or "345,1980". */
static void value_text(enum setting s, struct value v, char *out, size_t size)
{
	char first[16], second[16];
	if (!kinds[s].pair) {
		snprintf(out, size, "%u", v.first);
	} else if (v.first == 0 && v.second == 0) {
		snprintf(out, size, "none");
	} else {
		limit_text(v.first, first, sizeof first);
		limit_text(v.second, second, sizeof second);
		snprintf(out, size, "%s,%s", first, second);
	}
}

static bool value_parse(enum setting s, char *text, struct value *v)
{
	*v = (struct value){0};
	if (!kinds[s].pair) {
		unsigned long long n;
		bool good = text_number(text, UINT_MAX, &n);
		if (good)
			v->first = (unsigned int)n;
		return good;
	}
	if (strcmp(text, "none") == 0)
		return true;
	char *comma = strchr(text, ',');
	if (!comma)
		return false;
	*comma = '\0';
	return limit_parse(text, &v->first) && limit_parse(comma + 1, &v->second);
}

/* "none" for off, else "1,1": now and after a reset. */
static bool mode_parse(char *text, struct mig_split *split)
{
	struct value v;
	if (!value_parse(GPU_CLOCKS, text, &v) || v.first > 1 || v.second > 1)
		return false;
	split->now = v.first;
	split->next = v.second;
	return true;
}

/* "gpu/UUID/key value" */
static bool line_parse(const struct world *w, struct state *st, char *line)
{
	char *value = strchr(line, ' ');
	if (!value)
		return false;
	*value++ = '\0';
	char *key = strrchr(line, '/');
	if (!key || strncmp(line, "gpu/", 4) != 0 || key < line + 4)
		return false;
	*key++ = '\0';
	for (unsigned int i = 0; i < w->gpu_count; i++) {
		if (strcmp(w->gpus[i].uuid, line + 4) != 0)
			continue;
		if (strcmp(key, "mig_mode") == 0)
			return mode_parse(value, &st->split[i]);
		if (strcmp(key, "mig_instances") == 0)
			return split_parse(value, &st->split[i]);
		for (enum setting s = 0; s < SETTINGS; s++)
			if (strcmp(kinds[s].key, key) == 0)
				return value_parse(s, value, &st->values[i][s]);
	}
	return false;
}

static void as_described(const struct world *w, struct state *st)
{
	for (unsigned int i = 0; i < w->gpu_count; i++) {
		memcpy(st->values[i], w->gpus[i].initial, sizeof st->values[i]);
		st->split[i] = w->gpus[i].mig_initial;
	}
}

/* What is not in the file is as described. Anything odd in it is an error. */
nvmlReturn_t state_read(const struct world *w, struct state *st)
{
	as_described(w, st);
	char *text = text_read(w->state, NULL, 0);
	if (!text) {
		if (errno == ENOENT)
			return NVML_SUCCESS;
		complain("%s: %s", w->state, strerror(errno));
		return NVML_ERROR_UNKNOWN;
	}
	nvmlReturn_t ret = NVML_SUCCESS;
	unsigned int number = 1;
	for (char *line = text; *line != '\0'; number++) {
		char *end = strchr(line, '\n');
		if (end)
			*end = '\0';
		if (!end || !line_parse(w, st, line)) {
			complain("%s:%u: want gpu/UUID/KEY VALUE of a GPU in %s", w->state, number, w->conf);
			ret = NVML_ERROR_UNKNOWN;
			break;
		}
		line = end + 1;
	}
	free(text);
	return ret;
}

static bool state_write(const struct world *w, const struct state *st)
{
	size_t size = (size_t)w->gpu_count * ((SETTINGS + 1) * (NAME_SIZE + 64) + NAME_SIZE + 2048), n = 0;
	char *text = malloc(size);
	if (!text)
		return false;
	for (unsigned int i = 0; i < w->gpu_count; i++) {
		const char *uuid = w->gpus[i].uuid;
		char value[2000];
		for (enum setting s = 0; s < SETTINGS; s++) {
			value_text(s, st->values[i][s], value, sizeof value);
			n += (size_t)snprintf(text + n, size - n, "gpu/%s/%s %s\n", uuid, kinds[s].key, value);
		}
		value_text(GPU_CLOCKS, (struct value){st->split[i].now, st->split[i].next}, value, sizeof value);
		n += (size_t)snprintf(text + n, size - n, "gpu/%s/mig_mode %s\n", uuid, value);
		split_text(&st->split[i], value, sizeof value);
		n += (size_t)snprintf(text + n, size - n, "gpu/%s/mig_instances %s\n", uuid, value);
	}
	bool good = state_replace(w->state, text, n);
	free(text);
	return good;
}

/* Makes the state what it is after a reboot. */
bool state_reset(const struct world *w)
{
	struct state st;
	as_described(w, &st);
	int lock = state_lock(w);
	if (lock < 0)
		return false;
	bool good = state_write(w, &st);
	state_unlock(lock);
	return good;
}

/* Changes the state of the call's GPU, unless the call's fault says otherwise. */
static nvmlReturn_t change(struct call *c, void (*values)(struct value *, void *), void *what,
			   nvmlReturn_t (*split)(struct call *, struct mig_split *))
{
	if (c->fault.ignored)
		return NVML_SUCCESS;
	struct state *st = calloc(1, sizeof *st);
	if (!st)
		return NVML_ERROR_MEMORY;
	int lock = state_lock(c->world);
	nvmlReturn_t ret = lock < 0 ? NVML_ERROR_UNKNOWN : state_read(c->world, st);
	if (ret == NVML_SUCCESS && values)
		values(st->values[index_of(c)], what);
	if (ret == NVML_SUCCESS && split)
		ret = split(c, &st->split[index_of(c)]);
	if (ret == NVML_SUCCESS && !state_write(c->world, st))
		ret = NVML_ERROR_UNKNOWN;
	if (lock >= 0)
		state_unlock(lock);
	free(st);
	return ret == NVML_SUCCESS && c->fault.applied ? c->fault.error : ret;
}

struct one {
	enum setting setting;
	struct value value;
};

static void set_one(struct value *values, void *what)
{
	const struct one *one = what;
	values[one->setting] = one->value;
}

/* Sets one value of the call's GPU, bent as the call's fault says. */
nvmlReturn_t state_change(struct call *c, enum setting s, struct value value)
{
	struct one one = {s, c->fault.valued ? c->fault.value : value};
	return change(c, set_one, &one, NULL);
}

/* Changes how the call's GPU is split. The change says no by its result. */
nvmlReturn_t state_split(struct call *c, nvmlReturn_t (*split)(struct call *c, struct mig_split *split))
{
	return change(c, NULL, NULL, split);
}

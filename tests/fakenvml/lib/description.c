/* The description: fakenvml.conf. */
#include "fake.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where in which file a reader is. */
struct reader {
	struct world *world;
	const char *file;
	unsigned int line;
	char why[256];
};

static bool wrong(struct reader *r, const char *key, const char *want)
{
	snprintf(r->why, sizeof r->why, "%s: want %s", key, want);
	return false;
}

/* Exactly count numbers. */
static bool numbers(struct reader *r, const char *key, char *rest, unsigned int *out, unsigned int count)
{
	char want[32];
	snprintf(want, sizeof want, "%u number%s", count, count == 1 ? "" : "s");
	for (unsigned int i = 0; i < count; i++) {
		unsigned long long n;
		if (!text_number(text_word(&rest), UINT_MAX, &n))
			return wrong(r, key, want);
		out[i] = (unsigned int)n;
	}
	return text_word(&rest) ? wrong(r, key, want) : true;
}

static bool large(struct reader *r, const char *key, char *rest, unsigned long long *out)
{
	bool good = text_number(text_word(&rest), ULLONG_MAX, out) && !text_word(&rest);
	return good ? true : wrong(r, key, "one number");
}

static bool two(struct reader *r, const char *key, char *rest, struct value *out)
{
	unsigned int n[2];
	if (!numbers(r, key, rest, n, 2))
		return false;
	*out = (struct value){n[0], n[1]};
	return true;
}

/* The rest of the line as it stands. */
static bool text(struct reader *r, const char *key, const char *rest, char *out, size_t size)
{
	size_t length = strlen(rest);
	if (length == 0 || length >= size)
		return wrong(r, key, "a text, not longer than NVML's own buffers");
	memcpy(out, rest, length + 1);
	return true;
}

static bool path(struct reader *r, const char *key, const char *rest, char *out, size_t size)
{
	return *rest != '\0' && place_beside(out, size, r->file, rest) ? true : wrong(r, key, "a file's name");
}

static bool mask(struct reader *r, const char *key, const char *rest, struct mask *out)
{
	return text_mask(rest, out) ? true : wrong(r, key, "a list such as 0-3,8 or none");
}

/* An H200 as measured; ../fakenvml.go lists what was not. */
static bool new_gpu(struct reader *r, const char *uuid)
{
	struct world *w = r->world;
	if (w->gpu_count == MAX_GPUS)
		return wrong(r, "gpu", "fewer GPUs");
	for (unsigned int i = 0; i < w->gpu_count; i++)
		if (strcmp(w->gpus[i].uuid, uuid) == 0)
			return wrong(r, "gpu", "a UUID that no other has");
	struct gpu *g = &w->gpus[w->gpu_count];
	*g = (struct gpu){
		.name = "NVIDIA H200",
		.bus = w->gpu_count / 16,
		.device = 6 + w->gpu_count % 16,
		.minor = w->gpu_count,
		.architecture = NVML_DEVICE_ARCH_HOPPER,
		.pci_id = 0x233510de,
		.has_mig = true,
		.mig_activates = true,
		.has_ecc = true,
		.ecc = {1, 1},
		.power_range = {200000, 700000},
		.memory_clocks = {3201, 2201},
		.memory_clock_count = 2,
		.clock_max = 1980,
		.clock_min = 345,
		.clock_step = 15,
		.video_max = 1545,
		.video_min = 765,
		.initial = {[POWER_LIMIT] = {700000, 0}, [APPLICATION_CLOCKS] = {3201, 1980}, [PERSISTENCE] = {1, 0}},
		.event_reasons = nvmlClocksEventReasonGpuIdle,
		.energy = 1000000000,
		.temperature = 30,
		.power = 75000,
		.memory = 143771ULL << 20,
	};
	text_mask("0-31", &g->cpus);
	text_mask("0-31", &g->cpus_socket);
	text_mask("0", &g->nodes);
	text_mask("0", &g->nodes_socket);
	if (!text(r, "gpu", uuid, g->uuid, sizeof g->uuid) || strpbrk(uuid, " \t/"))
		return wrong(r, "gpu", "a UUID");
	w->gpu_count++;
	return true;
}

static bool pci(struct reader *r, const char *rest, struct gpu *g)
{
	char end;
	unsigned int function;
	if (sscanf(rest, "%x:%x:%x.%x%c", &g->domain, &g->bus, &g->device, &function, &end) == 4 && g->bus < 256 &&
	    g->device < 32 && function == 0)
		return true;
	return wrong(r, "pci", "an address such as 0000:07:00.0");
}

static bool mig(struct reader *r, char *rest, struct gpu *g)
{
	unsigned long long place;
	if (!text_number(text_word(&rest), 6, &place))
		return wrong(r, "mig", "a place from 0 to 6 and a UUID");
	char *uuid = text_word(&rest);
	/* An instance with the card's smallest profile. */
	g->mig_initial.instances[instance_id((unsigned int)place, 1)] = (struct mig_instance){
		.is = {true, 19, (unsigned int)place, 1},
		.parts = {{true, 0, 0, 1}},
	};
	return text(r, "mig", uuid ? uuid : "", g->mig_uuid[place], sizeof g->mig_uuid[place]);
}

static bool mig_mode(struct reader *r, char *rest, struct gpu *g)
{
	unsigned long long now, next;
	if (!text_number(text_word(&rest), 1, &now))
		return wrong(r, "mig_mode", "0 or 1, a second one for the next reset, or none");
	char *word = text_word(&rest);
	next = now;
	if ((word && !text_number(word, 1, &next)) || text_word(&rest))
		return wrong(r, "mig_mode", "0 or 1, a second one for the next reset, or none");
	g->mig_initial.now = (unsigned int)now;
	g->mig_initial.next = (unsigned int)next;
	return true;
}

static bool process(struct reader *r, char *rest, struct gpu *g)
{
	unsigned long long pid, memory, start;
	const char *want = "a pid and its bytes of GPU memory, at most 64 times, and the first slice of its MIG instance";
	if (g->process_count == MAX_PROCESSES || !text_number(text_word(&rest), INT_MAX, &pid) ||
	    !text_number(text_word(&rest), ULLONG_MAX, &memory))
		return wrong(r, "process", want);
	char *word = text_word(&rest);
	if ((word && !text_number(word, MAX_MIG - 1, &start)) || text_word(&rest))
		return wrong(r, "process", want);
	g->processes[g->process_count++] = (struct process){(unsigned int)pid, memory, word ? (int)start : -1};
	return true;
}

static bool use_samples(struct reader *r, char *rest, struct gpu *g)
{
	g->use_count = 0;
	for (char *word; (word = text_word(&rest));) {
		unsigned long long n;
		if (g->use_count == MAX_USE || !text_number(word, 100, &n))
			return wrong(r, "utilization_samples", "numbers from 0 to 100, at most 64");
		g->use[g->use_count++] = (unsigned int)n;
	}
	return true;
}

static bool field(struct reader *r, char *rest, struct gpu *g)
{
	unsigned long long id, value;
	if (g->field_count == MAX_FIELDS || !text_number(text_word(&rest), UINT_MAX, &id) ||
	    !text_number(text_word(&rest), ULLONG_MAX, &value) || text_word(&rest))
		return wrong(r, "field", "NVML's number of a field and its value, at most 64 times");
	g->fields[g->field_count].id = (unsigned int)id;
	g->fields[g->field_count++].value = value;
	return true;
}

static bool memory_clocks(struct reader *r, char *rest, struct gpu *g)
{
	g->memory_clock_count = 0;
	for (char *word; (word = text_word(&rest));) {
		unsigned long long n;
		unsigned int have = g->memory_clock_count;
		if (have == MAX_CLOCKS || !text_number(word, UINT_MAX, &n) || n == 0 ||
		    (have > 0 && n >= g->memory_clocks[have - 1]))
			return wrong(r, "memory_clocks", "numbers that fall, or none");
		g->memory_clocks[g->memory_clock_count++] = (unsigned int)n;
	}
	return true;
}

static bool graphics_clocks(struct reader *r, char *rest, struct gpu *g)
{
	unsigned int n[3];
	if (!numbers(r, "graphics_clocks", rest, n, 3))
		return false;
	if (n[1] == 0 || n[0] < n[1] || n[2] == 0 || (n[0] - n[1]) % n[2] != 0)
		return wrong(r, "graphics_clocks", "highest, lowest and a step that divides what is between");
	g->clock_max = n[0];
	g->clock_min = n[1];
	g->clock_step = n[2];
	return true;
}

static bool gpu_line(struct reader *r, const char *key, char *rest, struct gpu *g)
{
	bool none = strcmp(rest, "none") == 0;
#define IS(name) (strcmp(key, name) == 0)
	if (IS("name"))
		return text(r, key, rest, g->name, sizeof g->name);
	if (IS("pci"))
		return pci(r, rest, g);
	if (IS("pci_id"))
		return numbers(r, key, rest, &g->pci_id, 1);
	if (IS("pci_subsystem"))
		return numbers(r, key, rest, &g->pci_subsystem, 1);
	if (IS("architecture"))
		return numbers(r, key, rest, &g->architecture, 1);
	if (IS("minor"))
		return numbers(r, key, rest, &g->minor, 1);
	if (IS("cpus")) {
		bool good = mask(r, key, rest, &g->cpus);
		g->cpus_socket = g->cpus;
		return good;
	}
	if (IS("nodes")) {
		bool good = mask(r, key, rest, &g->nodes);
		g->nodes_socket = g->nodes;
		return good;
	}
	if (IS("cpus_socket"))
		return mask(r, key, rest, &g->cpus_socket);
	if (IS("nodes_socket"))
		return mask(r, key, rest, &g->nodes_socket);
	if (IS("numa_node")) {
		g->has_numa_node = !none;
		return none ? true : numbers(r, key, rest, &g->numa_node, 1);
	}
	if (IS("mig_mode")) {
		g->has_mig = !none;
		return none ? true : mig_mode(r, rest, g);
	}
	if (IS("mig_instances")) {
		bool good = split_parse(rest, &g->mig_initial);
		return good ? true : wrong(r, key, "PROFILE@START:SIZE[/PROFILE@START:SIZE…] with ; between, by NVML's ids, or none");
	}
	if (IS("mig_activates")) {
		unsigned int activates = 0;
		bool good = numbers(r, key, rest, &activates, 1);
		g->mig_activates = activates != 0;
		return good;
	}
	if (IS("mig"))
		return mig(r, rest, g);
	if (IS("ecc")) {
		g->has_ecc = !none;
		return none ? true : two(r, key, rest, &g->ecc);
	}
	if (IS("power_range")) {
		g->power_range = (struct value){0};
		return none ? true : two(r, key, rest, &g->power_range);
	}
	if (IS("power_limit"))
		return numbers(r, key, rest, &g->initial[POWER_LIMIT].first, 1);
	if (IS("memory_clocks")) {
		g->memory_clock_count = 0;
		return none ? true : memory_clocks(r, rest, g);
	}
	if (IS("graphics_clocks")) {
		g->clock_max = g->clock_min = g->clock_step = 0;
		return none ? true : graphics_clocks(r, rest, g);
	}
	if (IS("video_clocks")) {
		struct value range = {0};
		if (!none && !two(r, key, rest, &range))
			return false;
		g->video_max = range.first;
		g->video_min = range.second;
		return true;
	}
	if (IS("application_clocks")) {
		g->initial[APPLICATION_CLOCKS] = (struct value){0};
		return none ? true : two(r, key, rest, &g->initial[APPLICATION_CLOCKS]);
	}
	if (IS("persistence"))
		return numbers(r, key, rest, &g->initial[PERSISTENCE].first, 1);
	if (IS("compute_mode"))
		return numbers(r, key, rest, &g->initial[COMPUTE_MODE].first, 1);
	if (IS("process"))
		return process(r, rest, g);
	if (IS("remapped_rows"))
		return numbers(r, key, rest, g->remapped, 4);
	if (IS("event_reasons"))
		return large(r, key, rest, &g->event_reasons);
	if (IS("energy"))
		return large(r, key, rest, &g->energy);
	if (IS("temperature"))
		return numbers(r, key, rest, &g->temperature, 1);
	if (IS("performance_state"))
		return numbers(r, key, rest, &g->pstate, 1);
	if (IS("power"))
		return numbers(r, key, rest, &g->power, 1);
	if (IS("utilization"))
		return two(r, key, rest, &g->utilization);
	if (IS("utilization_samples"))
		return use_samples(r, rest, g);
	if (IS("pcie_replays"))
		return numbers(r, key, rest, &g->pcie_replays, 1);
	if (IS("ecc_errors"))
		return two(r, key, rest, &g->ecc_errors);
	if (IS("field"))
		return field(r, rest, g);
	if (IS("memory"))
		return large(r, key, rest, &g->memory);
	if (IS("memory_used"))
		return large(r, key, rest, &g->memory_used);
	snprintf(r->why, sizeof r->why, "unknown key \"%s\" of a GPU", key);
	return false;
}

static bool fault_line(struct reader *r, char *rest)
{
	struct world *w = r->world;
	if (w->fault_count == MAX_FAULTS)
		return wrong(r, "fault", "fewer faults");
	struct fault *f = &w->faults[w->fault_count];
	*f = (struct fault){.file = r->file, .line = r->line};
	if (!fault_parse(w, rest, f, r->why, sizeof r->why))
		return false;
	w->fault_count++;
	return true;
}

static bool conf_line(struct reader *r, const char *key, char *rest)
{
	struct world *w = r->world;
	if (IS("fault"))
		return fault_line(r, rest);
	if (IS("gpu"))
		return new_gpu(r, rest);
	if (w->gpu_count > 0)
		return gpu_line(r, key, rest, &w->gpus[w->gpu_count - 1]);
	if (IS("driver"))
		return text(r, key, rest, w->driver, sizeof w->driver);
	if (IS("library"))
		return text(r, key, rest, w->library, sizeof w->library);
	if (IS("cuda"))
		return numbers(r, key, rest, &w->cuda, 1);
	if (IS("state"))
		return path(r, key, rest, w->state, sizeof w->state);
	if (IS("faults"))
		return path(r, key, rest, w->faults_file, sizeof w->faults_file);
	if (IS("processes"))
		return path(r, key, rest, w->processes_file, sizeof w->processes_file);
	if (IS("log"))
		return path(r, key, rest, w->log, sizeof w->log);
	if (IS("times"))
		return path(r, key, rest, w->times, sizeof w->times);
	snprintf(r->why, sizeof r->why, "unknown key \"%s\" before the first gpu", key);
	return false;
#undef IS
}

static bool fault_file_line(struct reader *r, const char *key, char *rest)
{
	if (strcmp(key, "fault") == 0)
		return fault_line(r, rest);
	snprintf(r->why, sizeof r->why, "unknown key \"%s\": want fault", key);
	return false;
}

/* "UUID PID BYTES [SLICE]" */
static bool process_file_line(struct reader *r, const char *key, char *rest)
{
	for (unsigned int i = 0; i < r->world->gpu_count; i++)
		if (strcmp(r->world->gpus[i].uuid, key) == 0)
			return process(r, rest, &r->world->gpus[i]);
	snprintf(r->why, sizeof r->why, "unknown GPU \"%s\"", key);
	return false;
}

static bool lines(struct reader *r, char *text, bool (*take)(struct reader *, const char *, char *))
{
	for (char *line = text; line; ) {
		char *next = strchr(line, '\n');
		if (next)
			*next++ = '\0';
		r->line++;
		char *rest = line;
		char *key = text_word(&rest);
		line = next;
		if (!key || key[0] == '#')
			continue;
		rest += strspn(rest, " \t\r");
		for (size_t n = strlen(rest); n > 0 && strchr(" \t\r", rest[n - 1]); n--)
			rest[n - 1] = '\0';
		if (!take(r, key, rest)) {
			complain("%s:%u: %s", r->file, r->line, r->why);
			return false;
		}
	}
	return true;
}

nvmlReturn_t world_read(struct world *w)
{
	if (!place_find(w->conf, sizeof w->conf)) {
		complain("no description: FAKENVML_CONF is not set and the library's folder is not known");
		return NVML_ERROR_DRIVER_NOT_LOADED;
	}
	snprintf(w->driver, sizeof w->driver, "580.159.04");
	snprintf(w->library, sizeof w->library, "13.580.159.04");
	w->cuda = 13000;
	if (!place_beside(w->state, sizeof w->state, w->conf, "fakenvml.state") ||
	    !place_beside(w->processes_file, sizeof w->processes_file, w->conf, "fakenvml.processes") ||
	    !place_beside(w->faults_file, sizeof w->faults_file, w->conf, "fakenvml.faults")) {
		complain("%s: name too long", w->conf);
		return NVML_ERROR_DRIVER_NOT_LOADED;
	}

	char of_conf[100], of_faults[100] = "none";
	char *text = text_read(w->conf, of_conf, sizeof of_conf);
	if (!text) {
		complain("%s: %s", w->conf, strerror(errno));
		return NVML_ERROR_DRIVER_NOT_LOADED;
	}
	bool good = lines(&(struct reader){.world = w, .file = w->conf}, text, conf_line);
	free(text);
	if (!good)
		return NVML_ERROR_UNKNOWN;

	text = text_read(w->faults_file, of_faults, sizeof of_faults);
	if (text) {
		good = lines(&(struct reader){.world = w, .file = w->faults_file}, text, fault_file_line);
		free(text);
	} else if (errno != ENOENT) {
		complain("%s: %s", w->faults_file, strerror(errno));
		good = false;
	}
	text = good ? text_read(w->processes_file, NULL, 0) : NULL;
	if (text) {
		good = lines(&(struct reader){.world = w, .file = w->processes_file}, text, process_file_line);
		free(text);
	} else if (good && errno != ENOENT) {
		complain("%s: %s", w->processes_file, strerror(errno));
		good = false;
	}
	snprintf(w->identity, sizeof w->identity, "%s/%s", of_conf, of_faults);
	return good ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

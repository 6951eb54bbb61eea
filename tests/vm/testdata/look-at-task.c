/*
 * look-at-task [MIB]        what the kernel says about this process, a task of Slurm or a child of one
 * look-at-task --pid PID    the same about another process, for root: that one may have no /dev and no /sys
 *
 * One line of NAME=VALUE, separated by tabs: the CPUs and memory nodes it may use, its cgroup's cpuset and that of the
 * cgroup above, its memory policy, which GPUs it may open, and what gputune says. Of its own process also where the
 * pages of a buffer of MIB MiB lie once they are written; without MIB, that is 16, and numactl's view is there as well.
 *
 * Linked statically: in every release's machine it starts at a tenth of the emulated CPU time that a script needs.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GPUS 8

static void die(const char *what)
{
	fprintf(stderr, "look-at-task: %s: %s\n", what, strerror(errno));
	_exit(1); /* half a line is worse than none */
}

/* A string from a format, for ever. */
__attribute__((format(printf, 1, 2))) static char *text(const char *format, ...)
{
	char *made;
	va_list arguments;
	va_start(arguments, format);
	if (vasprintf(&made, format, arguments) < 0)
		abort();
	va_end(arguments);
	return made;
}

/* The content of a file, or "?" and the reason why there is none. */
static char *slurp(const char *path, size_t *size)
{
	size_t capacity = 4096, length = 0;
	char *content = malloc(capacity);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t got = -1;
	while (content && fd >= 0 && (got = read(fd, content + length, capacity - length - 1)) > 0) {
		length += (size_t)got;
		if (capacity - length < 2 && !(content = realloc(content, capacity *= 2)))
			abort();
	}
	if (!content || got < 0)
		return text("?%s", strerror(errno));
	close(fd);
	content[length] = '\0';
	if (size)
		*size = length;
	return content;
}

static int facts;

/* Adds a fact; blanks become single ones, none at the ends. */
static void add(const char *name, const char *value)
{
	printf("%s%s=", facts++ ? "\t" : "", name);
	int blank = 0, begun = 0;
	for (; value && *value; value++) {
		if (isspace((unsigned char)*value)) {
			blank = begun;
			continue;
		}
		if (blank)
			putchar(' ');
		blank = 0;
		begun = 1;
		putchar(*value);
	}
}

static const char *variables; /* NAME=VALUE, each ended by NUL; NULL: this process's own */
static size_t variables_size;

static const char *variable(const char *name)
{
	if (!variables)
		return getenv(name);
	size_t length = strlen(name);
	for (const char *at = variables; at < variables + variables_size; at += strlen(at) + 1)
		if (strncmp(at, name, length) == 0 && at[length] == '=')
			return at + length + 1;
	return NULL;
}

/* The rest of the line that begins with this. */
static char *after(const char *content, const char *begin)
{
	size_t length = strlen(begin);
	for (const char *line = content; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
		if (strncmp(line, begin, length) == 0)
			return text("%.*s", (int)strcspn(line + length, "\n"), line + length);
	return NULL;
}

/* What Slurm's own binding was: a mask for each task of this node, or fewer that are gone through again. */
static const char *bound(void)
{
	const char *list = variable("SLURM_CPU_BIND_LIST"), *local = variable("SLURM_LOCALID");
	if (!list || !*list)
		return "";
	int masks = 1;
	for (const char *at = list; *at; at++)
		masks += *at == ',';
	for (int skip = (local ? atoi(local) : 0) % masks; skip > 0; skip--)
		list = strchr(list, ',') + 1;
	return text("%.*s", (int)strcspn(list, ","), list);
}

static void numactl(void)
{
	FILE *out = popen("numactl --show", "r");
	char line[4096];
	while (out && fgets(line, sizeof(line), out)) {
		char *colon = strchr(line, ':');
		if (!colon)
			continue;
		*colon = '\0';
		if (strcmp(line, "policy") == 0 || strcmp(line, "physcpubind") == 0 || strcmp(line, "membind") == 0)
			add(text("numactl.%s", line), colon + 1);
	}
	if (out)
		pclose(out);
}

/* The largest anonymous mapping is the buffer; its policy is the task's, since it has none of its own. */
static void memory(const char *maps)
{
	long most = 0;
	const char *policy = "?";
	char *pages = "";
	for (const char *line = maps; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
		char *fields = text("%.*s", (int)strcspn(line, "\n"), line);
		char *anon = strstr(fields, " anon="), *begin = strchr(fields, ' ');
		if (!anon || !begin || atol(anon + strlen(" anon=")) <= most)
			continue;
		most = atol(anon + strlen(" anon="));
		begin++;
		size_t length = strcspn(begin, " ");
		if (strncmp(begin + length, " (many)", strlen(" (many)")) == 0) /* "prefer (many):0-1" */
			length += 1 + strcspn(begin + length + 1, " ");
		policy = text("%.*s", (int)length, begin);
		pages = "";
		int node;
		long count;
		for (char *at = anon; at; at = strchr(at + 1, ' '))
			if (sscanf(at, " N%d=%ld", &node, &count) == 2)
				pages = text("%s%s%d:%ld", pages, *pages ? "," : "", node, count);
	}
	add("policy", policy);
	add("pages", pages);
}

/* Where the device cgroup lets it through, open fails for want of a driver (ENXIO); else with EPERM. */
static void devices(void)
{
	char *open_ = "", *there = "";
	for (int minor = 0; minor < GPUS; minor++) {
		char *path = text("/dev/nvidia%d", minor);
		if (access(path, F_OK) != 0)
			continue;
		there = text("%s%s%d", there, *there ? "," : "", minor);
		int fd = open(path, O_RDWR | O_CLOEXEC);
		if (fd >= 0 || errno != EPERM)
			open_ = text("%s%s%d", open_, *open_ ? "," : "", minor);
		if (fd >= 0)
			close(fd);
	}
	add("open", open_);
	add("devices", there);
}

int main(int argc, char **argv)
{
	static const char *const says[] = {"GPUTUNE_GPUS", "GPUTUNE_CPUS", "GPUTUNE_MEMS", "GPUTUNE_MEM_POLICY", "GPUTUNE_LOCALITY"};
	static char line[1 << 16]; /* written as a whole: other tasks write to the same pipe */
	setvbuf(stdout, line, _IOFBF, sizeof(line));
	size_t mib = 16;
	const char *pid = NULL, *proc = "/proc/self";
	if (argc == 3 && strcmp(argv[1], "--pid") == 0) {
		pid = argv[2];
		mib = 0;
		proc = text("/proc/%s", pid);
		variables = slurp(text("%s/environ", proc), &variables_size);
	} else if (argc == 2 && isdigit((unsigned char)argv[1][0])) {
		mib = strtoul(argv[1], NULL, 10);
	} else if (argc > 1) {
		fprintf(stderr, "look-at-task: want [MIB] or --pid PID\n");
		return 1;
	}

	add("task", variable("SLURM_PROCID"));
	char *status = slurp(text("%s/status", proc), NULL);
	char *uids = after(status, "Uid:");
	add("uid", uids ? text("%d", atoi(uids)) : NULL);
	add("cpus", after(status, "Cpus_allowed_list:"));
	add("mems", after(status, "Mems_allowed_list:"));
	add("bound", bound());

	char *cgroup = after(slurp(text("%s/cgroup", proc), NULL), "0::");
	add("cgroup", cgroup);
	char *leaf = text("/sys/fs/cgroup%s", cgroup ? cgroup : "");
	static const char *const files[] = {"cpus", "mems", "cpus.effective", "mems.effective"};
	for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++)
		add(text("leaf.%s", files[i]), slurp(text("%s/cpuset.%s", leaf, files[i]), NULL));
	/* The step's own are those of the cgroup above its tasks'. */
	char *above = text("%s", leaf), *last = strrchr(above, '/');
	if (last && strncmp(last, "/task_", strlen("/task_")) == 0)
		*last = '\0';
	add("step.cpus", slurp(text("%s/cpuset.cpus.effective", above), NULL));
	add("step.mems", slurp(text("%s/cpuset.mems.effective", above), NULL));

	if (argc == 1)
		numactl();
	if (mib > 0) {
		char *buffer = mmap(NULL, mib << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (buffer == MAP_FAILED)
			die("memory");
		memset(buffer, 1, mib << 20);
	}
	memory(slurp(text("%s/numa_maps", proc), NULL));
	add("bytes", text("%zu", mib << 20));

	if (pid) {
		char *procs = text("%s/cgroup.procs", leaf);
		int fd = open(procs, O_WRONLY | O_CLOEXEC);
		if (fd < 0 || dprintf(fd, "%d", (int)getpid()) < 0)
			die(procs);
		close(fd);
	}
	devices();
	add("cvd", variable("CUDA_VISIBLE_DEVICES"));
	for (size_t i = 0; i < sizeof(says) / sizeof(*says); i++) {
		char *name = text("%s", says[i]);
		for (char *at = name; *at; at++)
			*at = (char)tolower((unsigned char)*at);
		add(name, variable(says[i]));
	}
	putchar('\n');
	return fflush(stdout) == 0 ? 0 : 1;
}

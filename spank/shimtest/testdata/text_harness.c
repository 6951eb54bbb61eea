/* Answers questions about text.c, one a line on standard input, so that the Go
 * test can compare its answers with the Go side's. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../shim/shim.h"

static struct gputune_page *page;

static void describe_node(void)
{
	page = calloc(1, sizeof(*page));
	page->gpus = 4;
	/* Slurm's order runs against that of the PCI addresses, and its third GPU is unknown. */
	page->orders = 5;
	for (int i = 0; i < 5; i++)
		page->order[i] = i == 2 ? -1 : i < 2 ? 3 - i : 4 - i;
	for (int i = 0; i < 4; i++) {
		snprintf(page->gpu[i].uuid, sizeof(page->gpu[i].uuid), "GPU-%d2345678-aaaa-bbbb-cccc-0000000000%02d", i, i);
		snprintf(page->gpu[i].mig[0], sizeof(page->gpu[i].mig[0]), "MIG-%d1111111-0000-0000-0000-000000000000", i);
		snprintf(page->gpu[i].mig[1], sizeof(page->gpu[i].mig[1]), "MIG-%d2222222-0000-0000-0000-000000000000", i);
	}
}

int main(void)
{
	static char line[1 << 16], buffer[1 << 16];

	describe_node();
	while (fgets(line, sizeof(line), stdin)) {
		char *rest = line, *what, *argument;

		line[strcspn(line, "\n")] = '\0';
		what = strsep(&rest, " ");
		argument = rest ? rest : "";
		if (strcmp(what, "list") == 0) {
			/* size of the buffer, then words in hexadecimal */
			uint64_t words[GPUTUNE_CPU_WORDS] = { 0 };
			size_t size = strtoul(argument, &argument, 10), n = 0;
			while (n < GPUTUNE_CPU_WORDS && *argument == ' ')
				words[n++] = strtoull(argument + 1, &argument, 16);
			struct text text = text_in(buffer, size);
			text_add_list(&text, words, GPUTUNE_CPU_WORDS);
			printf("%d %s\n", text.cut, buffer);
		} else if (strcmp(what, "items") == 0) {
			char *item = strsep(&argument, " ");
			printf("%d\n", items_have(argument ? argument : "", item));
		} else if (strcmp(what, "devices") == 0) {
			bool absolute = *argument == 'a';
			uint64_t sees = strtoull(argument + absolute, &argument, 16);
			struct devices d = devices_listed(page, sees, absolute, *argument ? argument + 1 : "");
			uint64_t gpus = 0;
			printf("%d ", !d.why);
			for (uint32_t i = 0; i < d.count; i++) {
				printf("%s%d", i ? "," : "", d.at[i]);
				gpus |= 1ULL << d.at[i];
			}
			printf(gpus == d.gpus ? "\n" : " is not %" PRIx64 "\n", d.gpus);
		} else if (strcmp(what, "hash") == 0) {
			printf("%" PRIu64 "\n", text_hash(argument));
		} else if (strcmp(what, "length") == 0) {
			printf("%" PRIu32 "\n", list_length(argument));
		} else if (strcmp(what, "share") == 0) {
			uint32_t tasks = strtoul(argument, &argument, 10), gpus = strtoul(argument, &argument, 10);
			printf("%" PRIu32 "\n", even_share(tasks, gpus));
		} else if (strcmp(what, "paired") == 0) {
			uint64_t sees = strtoull(argument, &argument, 16), step = strtoull(argument, &argument, 16);
			uint32_t tasks = strtoul(argument, &argument, 10), rank = strtoul(argument, &argument, 10);
			struct devices d = devices_all(sees);
			bool common = false;
			/* then their order, if every task has the same list */
			for (d.count = *argument ? 0 : d.count; *argument == ' '; common = true)
				d.at[d.count++] = strtoul(argument + 1, &argument, 10);
			printf("%" PRIx64 "\n", gpus_paired(&d, common, step, tasks, rank));
		} else {
			printf("what is %s\n", what);
		}
	}
	return 0;
}

/*
 * The program beside the library: "fakenvml check" tells whether description
 * and faults are well formed, "fakenvml reset" also makes the state as
 * described. Exit status 1 after a complaint.
 */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	if (argc != 2 || (strcmp(argv[1], "check") != 0 && strcmp(argv[1], "reset") != 0)) {
		complain("want: fakenvml check|reset");
		return 1;
	}
	struct world *w = calloc(1, sizeof *w);
	if (!w)
		return 1;
	bool good = world_read(w) == NVML_SUCCESS;
	if (good && strcmp(argv[1], "reset") == 0)
		good = state_reset(w);
	free(w);
	return good ? 0 : 1;
}

/* SPDX-License-Identifier: Apache-2.0
 * Claim: a program that is linked with this version of the library, and with something that is linked with another one,
 * has both in its process, and each calls its own. */
#include <froghopper/froghopper.h>
#include <stdio.h>
#include <string.h>

const char* version_of_other(void); /* tests/support/user_of_other_version.c */

int main(void) {
  char mine[32];
  snprintf(mine, sizeof mine, "%d.%d.%d", FH_VERSION_MAJOR, FH_VERSION_MINOR, FH_VERSION_PATCH);
  if (strcmp(fh_version(), mine) == 0 && strcmp(version_of_other(), "0.0.7") == 0) return 0;
  printf("this program got %s instead of %s, the other library %s instead of 0.0.7\n", fh_version(), mine,
         version_of_other());
  return 1;
}

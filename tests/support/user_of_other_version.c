/* SPDX-License-Identifier: Apache-2.0
 * tests: a library that is linked with another version of froghopper. */
const char* fh_version(void);
const char* version_of_other(void);
const char* version_of_other(void) { return fh_version(); }

/* Texts from a command line as JSON: these may be any bytes, and JSON is UTF-8. */
#ifndef RF_CLI_JSON_TEXT_H
#define RF_CLI_JSON_TEXT_H

#include <jansson.h>

/* The text, with U+FFFD for each byte that is not part of a character of UTF-8. NULL where there is
 * no memory, which json_pack takes as a failure of its own ("s:o"). */
json_t *json_text(const char *text);

#endif

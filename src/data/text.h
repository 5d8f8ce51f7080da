/* What the readers' error reports have in common: paths and numbers as people read them. */
#ifndef RF_DATA_TEXT_H
#define RF_DATA_TEXT_H

#include <stdint.h>

struct rf__number {
    char text[28];
};

/* 47040016 as "47,040,016". */
struct rf__number rf__number(uint64_t value);

/* The path, or the end of one that would fill the report's first line. */
const char *rf__path_tail(const char *path);

#endif

/* RF_ASSERT stays on in release: for programming errors only, never for input, I/O or memory. */
#ifndef RF_BASE_ASSERT_H
#define RF_BASE_ASSERT_H

_Noreturn void rf__assert_failed(const char *expression, const char *file, int line);

#define RF_ASSERT(expression)                                                                      \
    ((expression) ? (void)0 : rf__assert_failed(#expression, __FILE__, __LINE__))

#endif

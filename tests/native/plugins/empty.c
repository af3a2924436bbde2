/* A library without entry points. */
int nothing(void) { return 0; }

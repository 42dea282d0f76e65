#include <stdio.h>
#include <tutti/c/tutti.h>

int main(void) {
  puts(tutti_version());
  return 0;
}

// Reads lines "num_rows width" or "num_rows digest_size num_spans" and prints what csrc/plan.h says: "blocks threads
// rows".
#include <iostream>
#include <sstream>
#include <string>

#include "plan.h"

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    int64_t num_rows, width, num_spans;
    words >> num_rows >> width;
    const gpukey::Plan plan = words >> num_spans ? gpukey::plan_spans(num_rows, static_cast<int>(width), num_spans)
                                                 : gpukey::plan_rows(num_rows, width);
    std::cout << plan.blocks << " " << plan.threads << " " << plan.rows_per_block << "\n";
  }
}

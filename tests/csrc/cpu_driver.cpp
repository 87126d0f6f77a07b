// Digests of the CPU core without torch, for sanitizers and for each instruction set: every buffer has exactly its
// size, so that one byte too many is a fault. Prints a digest a line; tests/csrc/test_cpu_core.py knows what it must
// be.
//   rows NUM_ROWS WIDTH STRIDE OFFSET DIGEST_SIZE   stage (the same)   fold DIGEST_SIZE LENGTH...   keys BLOCK_SIZE
//   NUM_IDS
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "block_keys.h"
#include "fingerprint.h"
#include "lanes.h"

using namespace gpukey;

static uint8_t pattern(uint64_t i) { return static_cast<uint8_t>((i * 2654435761u >> 13) ^ i); }

static std::vector<uint8_t> bytes(int64_t size) {
  std::vector<uint8_t> data(size);
  for (int64_t i = 0; i < size; i++) data[i] = pattern(i);
  data.shrink_to_fit();
  return data;
}

static void print(const uint8_t* digests, int64_t count, int size) {
  for (int64_t i = 0; i < count; i++) {
    for (int j = 0; j < size; j++) std::printf("%02x", digests[i * size + j]);
    std::printf("\n");
  }
}

static void require(int error) {
  if (error != 0) std::printf("error %d: %s\n", error, cpu::error_string(error));
}

int main() {
  const char key[] = "whats the Elvish word for friend";
  std::printf("%s\n", cpu::instruction_set());
  for (std::string line, verb; std::getline(std::cin, line);) {
    std::istringstream words(line);
    words >> verb;
    if (verb == "rows" || verb == "stage") {
      int64_t num_rows, width, stride, offset;
      int size;
      words >> num_rows >> width >> stride >> offset >> size;
      const std::vector<uint8_t> data = bytes(num_rows > 0 ? offset + (num_rows - 1) * stride + width : 0);
      std::vector<uint8_t> digests(num_rows * size), staged(num_rows * width);
      const Rows rows{data.data() + offset, num_rows, width, stride};
      const Digests out{digests.data(), size};
      require(verb == "rows" ? cpu::fingerprint_rows(rows, key, out, nullptr)
                             : cpu::stage_rows(rows, staged.data(), width, key, out, nullptr));
      for (int64_t i = 0; verb == "stage" && i < num_rows; i++)
        if (std::memcmp(staged.data() + i * width, data.data() + offset + i * stride, width) != 0)
          std::printf("not staged\n");
      print(digests.data(), num_rows, size);
    } else if (verb == "fold") {
      int size;
      words >> size;
      std::vector<int32_t> bounds{0};
      for (int32_t length; words >> length;) bounds.push_back(bounds.back() + length);
      const int64_t num_spans = static_cast<int64_t>(bounds.size()) - 1, num_rows = bounds.back();
      const std::vector<uint8_t> data = bytes(num_rows * size);
      std::vector<uint8_t> digests(num_spans * size);
      require(cpu::fold_spans({data.data(), num_rows, size, size}, {bounds.data(), num_spans, 4}, key,
                              {digests.data(), size}, nullptr));
      print(digests.data(), num_spans, size);
    } else if (verb == "keys") {
      int64_t block_size, num_ids;
      words >> block_size >> num_ids;
      std::vector<int64_t> ids(num_ids);
      for (int64_t i = 0; i < num_ids; i++) ids[i] = i * 40503 % 151936;
      std::vector<uint8_t> keys(num_ids / block_size * kKeyBytes);
      const uint8_t* words32 = reinterpret_cast<const uint8_t*>(key);
      block_keys(ids.data(), num_ids / block_size, block_size, words32, words32, keys.data());
      print(keys.data(), num_ids / block_size, kKeyBytes);
    }
  }
  return 0;
}

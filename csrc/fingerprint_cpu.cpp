// The launchers of fingerprint.h on one CPU thread: equal nodes of the hash trees of several rows are hashed side by
// side.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "blake3.cuh"
#include "fingerprint.h"
#include "lanes.h"

namespace gpukey {
namespace cpu {
namespace {

constexpr int kCvBytes = 32;
constexpr int kTileChunks = 256;  // the CVs of a tile of rows, 8 KiB, stay in the first-level cache

// The best of this CPU, or the one that GPUKEY_CPU_ISA names (avx512, avx2, baseline; one that is missing: baseline).
HashBatch choose() {
  const char* forced = std::getenv("GPUKEY_CPU_ISA");
#if defined(__x86_64__)
  const auto allows = [&](const char* isa) { return forced == nullptr || std::strcmp(forced, isa) == 0; };
  if (allows("avx512") && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl"))
    return hash_batch_avx512;
  if (allows("avx2") && __builtin_cpu_supports("avx2")) return hash_batch_avx2;
#endif
  return hash_batch_baseline;
}

struct Hasher {
  uint32_t key[8];
  int digest_bytes;
  HashBatch hash_batch;

  Hasher(const void* key_bytes, int digest_bytes) : digest_bytes(digest_bytes), hash_batch(chosen()) {
    std::memcpy(key, key_bytes, sizeof key);
  }

  static HashBatch chosen() {
    static const HashBatch once = choose();
    return once;
  }
};

// Collects nodes of equal length and hashes them as soon as there is one for every lane.
class Nodes {
 public:
  Nodes(const Hasher& hasher, int length, Node node, bool root, int64_t ahead = 0)
      : hasher_(hasher), length_(length), node_(node), root_(root) {
    batch_.ahead = ahead;
  }
  ~Nodes() { flush(); }

  void add(const uint8_t* input, uint32_t counter, uint8_t* cv) {
    batch_.inputs[batch_.count] = input;
    batch_.counters[batch_.count] = counter;
    batch_.cvs[batch_.count++] = cv;
    if (batch_.count == kMaxLanes) flush();
  }

 private:
  void flush() {
    if (batch_.count > 0) hasher_.hash_batch(batch_, length_, node_, root_, hasher_.key);
    batch_.count = 0;
  }

  const Hasher& hasher_;
  const int length_;
  const Node node_;
  const bool root_;
  Batch batch_;
};

struct Source {
  const uint8_t* data;
  int64_t stride;
};

struct Target {  // null: nothing is staged
  uint8_t* data;
  int64_t stride;
};

// CVs of `count` equal pieces of inputs, each of `bytes` bytes in at most kTileChunks / count chunks, the first of
// which is number `first_chunk` of its input. `root`: the piece is the whole input.
void hash_tile(const Hasher& hasher, Source source, int count, int64_t bytes, int64_t first_chunk, bool root,
               uint8_t (*cvs)[kCvBytes]) {
  uint8_t nodes[kTileChunks][kCvBytes];
  const int chunks = static_cast<int>(num_chunks(bytes)), whole = static_cast<int>(bytes / kChunkBytes);
  const bool only = root && chunks == 1;
  if (whole > 0) {
    const int64_t ahead = whole < kMaxLanes ? source.stride * kMaxLanes / whole : kMaxLanes * kChunkBytes;
    Nodes batch(hasher, kChunkBytes, Node::kChunk, only, ahead);
    for (int row = 0; row < count; row++)
      for (int chunk = 0; chunk < whole; chunk++)
        batch.add(source.data + row * source.stride + int64_t{chunk} * kChunkBytes,
                  static_cast<uint32_t>(first_chunk + chunk), nodes[row * chunks + chunk]);
  }
  if (whole < chunks) {
    const int length = static_cast<int>(bytes - int64_t{whole} * kChunkBytes);
    Nodes batch(hasher, length, Node::kChunk, only, source.stride * kMaxLanes);
    for (int row = 0; row < count; row++)
      batch.add(source.data + row * source.stride + int64_t{whole} * kChunkBytes,
                static_cast<uint32_t>(first_chunk + whole), nodes[row * chunks + whole]);
  }
  for (int level = chunks; level > 1; level = (level + 1) / 2) {
    {
      Nodes batch(hasher, kBlockBytes, Node::kParent, root && level == 2);
      for (int row = 0; row < count; row++)
        for (int pair = 0; pair < level / 2; pair++)
          batch.add(nodes[row * chunks + 2 * pair], 0, nodes[row * chunks + pair]);
    }
    if (level % 2 == 1)
      for (int row = 0; row < count; row++)
        std::memcpy(nodes[row * chunks + level / 2], nodes[row * chunks + level - 1], kCvBytes);
  }
  for (int row = 0; row < count; row++) std::memcpy(cvs[row], nodes[row * chunks], kCvBytes);
}

// Copies what is about to be hashed; the hash then reads the copy.
Source stage(Source source, Target target, int64_t count, int64_t bytes) {
  if (target.data == nullptr) return source;
  for (int64_t row = 0; row < count; row++)
    std::memmove(target.data + row * target.stride, source.data + row * source.stride, bytes);
  return {target.data, target.stride};
}

// CV of a piece of one input, of any length: the left child covers the largest power of two of chunks that leaves a
// right.
void hash_long(const Hasher& hasher, const uint8_t* data, uint8_t* staged, int64_t bytes, int64_t first_chunk,
               bool root, uint8_t (*cv)[kCvBytes]) {
  const int64_t chunks = num_chunks(bytes);
  if (chunks <= kTileChunks) {
    hash_tile(hasher, stage({data, 0}, {staged, 0}, 1, bytes), 1, bytes, first_chunk, root, cv);
    return;
  }
  int64_t left = kTileChunks;
  while (2 * left < chunks) left *= 2;
  const int64_t split = left * kChunkBytes;
  uint8_t children[2][kCvBytes];
  hash_long(hasher, data, staged, split, first_chunk, false, &children[0]);
  hash_long(hasher, data + split, staged ? staged + split : nullptr, bytes - split, first_chunk + left, false,
            &children[1]);
  Nodes(hasher, kBlockBytes, Node::kParent, root).add(children[0], 0, *cv);
}

void hash_rows(const Hasher& hasher, Source source, Target target, int64_t num_rows, int64_t width, uint8_t* digests) {
  const int64_t chunks = num_chunks(width);
  const int tile = static_cast<int>(std::max<int64_t>(1, kTileChunks / chunks));
  uint8_t cvs[kTileChunks][kCvBytes];
  for (int64_t row = 0; row < num_rows; row += tile) {
    const int count = static_cast<int>(std::min<int64_t>(tile, num_rows - row));
    const Source from{source.data + row * source.stride, source.stride};
    const Target to{target.data ? target.data + row * target.stride : nullptr, target.stride};
    if (chunks > kTileChunks)
      hash_long(hasher, from.data, to.data, width, 0, true, cvs);
    else
      hash_tile(hasher, stage(from, to, count, width), count, width, 0, true, cvs);
    for (int i = 0; i < count; i++) std::memcpy(digests + (row + i) * hasher.digest_bytes, cvs[i], hasher.digest_bytes);
  }
}

int check(const Rows& rows, const void* key, const Digests& digests) {
  if (digests.size != 16 && digests.size != 32) return kBadDigestSize;
  if (rows.num_rows < 0 || rows.stride < 0 || rows.width <= 0 || rows.width >= kMaxWidth) return kBadSize;
  if (key == nullptr || (rows.num_rows > 0 && rows.data == nullptr)) return kBadPointer;
  return 0;
}

int64_t bound(const Bounds& bounds, int64_t i) {
  if (bounds.bytes_each == 4) return static_cast<const int32_t*>(bounds.data)[i];
  return static_cast<const int64_t*>(bounds.data)[i];
}

bool rising(const Bounds& bounds, int64_t num_rows) {
  if (bound(bounds, 0) != 0 || bound(bounds, bounds.num_spans) != num_rows) return false;
  for (int64_t i = 0; i < bounds.num_spans; i++)
    if (bound(bounds, i) > bound(bounds, i + 1)) return false;
  return true;
}

}  // namespace

int fingerprint_rows(const Rows& rows, const void* key, const Digests& digests, void* stream) {
  return stage_rows(rows, nullptr, 0, key, digests, stream);
}

// `staged` null: nothing is copied.
int stage_rows(const Rows& rows, void* staged, int64_t staged_stride, const void* key, const Digests& digests, void*) {
  if (const int error = check(rows, key, digests)) return error;
  if (staged_stride < 0) return kBadSize;
  if (rows.num_rows == 0) return 0;
  if (digests.data == nullptr) return kBadPointer;
  hash_rows(Hasher(key, digests.size), {static_cast<const uint8_t*>(rows.data), rows.stride},
            {static_cast<uint8_t*>(staged), staged_stride}, rows.num_rows, rows.width,
            static_cast<uint8_t*>(digests.data));
  return 0;
}

int fold_spans(const Rows& rows, const Bounds& bounds, const void* key, const Digests& digests, void*) {
  if (const int error = check(rows, key, digests)) return error;
  if (rows.width != digests.size || rows.stride != rows.width || bounds.num_spans < 0) return kBadSize;
  if (bounds.data == nullptr || (bounds.num_spans > 0 && digests.data == nullptr)) return kBadPointer;
  if ((bounds.bytes_each != 4 && bounds.bytes_each != 8) || !rising(bounds, rows.num_rows)) return kBadBounds;
  const Hasher hasher(key, digests.size);
  const uint8_t* fingerprints = static_cast<const uint8_t*>(rows.data);
  uint8_t* out = static_cast<uint8_t*>(digests.data);
  // Neighbouring spans of one length are the rows of a matrix.
  for (int64_t first = 0, next = 0; first < bounds.num_spans; first = next) {
    const int64_t begin = bound(bounds, first), length = bound(bounds, first + 1) - begin;
    for (next = first + 1; next < bounds.num_spans && bound(bounds, next + 1) - bound(bounds, next) == length;) next++;
    const int64_t bytes = length * rows.width;
    hash_rows(hasher, {fingerprints + begin * rows.width, bytes}, {nullptr, 0}, next - first, bytes,
              out + first * digests.size);
  }
  return 0;
}

const char* error_string(int error) {
  switch (error) {
    case 0: return "no error";
    case kBadDigestSize: return "digest_size is neither 16 nor 32";
    case kBadSize: return "a count, width or stride is out of range";
    case kBadBounds: return "cu_seqlens must start at 0, never fall and end at the number of rows";
    case kBadPointer: return "a pointer is null";
    default: return "unknown error";
  }
}

const char* instruction_set() {
  const HashBatch chosen = Hasher::chosen();
#if defined(__x86_64__)
  if (chosen == hash_batch_avx512) return "avx512";
  if (chosen == hash_batch_avx2) return "avx2";
#endif
  return "baseline";
}

}  // namespace cpu
}  // namespace gpukey

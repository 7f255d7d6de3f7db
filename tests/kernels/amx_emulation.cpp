#include "tests/kernels/amx_emulation.h"

#include <signal.h>
#include <ucontext.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace blockscope::testing {
namespace {

void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

/// Denormals are zeros, before and after every operation.
float flushed(float x) {
  return std::abs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
}

using Floats = std::array<float, 16>;

/// Every other bfloat16 of a row, from the first (0) or second (1) on.
Floats widened(const std::array<char, 64>& row, size_t which) {
  std::array<uint32_t, 16> pairs;
  std::memcpy(pairs.data(), row.data(), 64);
  Floats values;
  for (size_t i = 0; i < 16; ++i) {
    const uint32_t raw = which == 0 ? pairs[i] << 16 : pairs[i] & 0xffff0000u;
    values[i] = flushed(std::bit_cast<float>(raw));
  }
  return values;
}

/// sums += x * values, each rounded once.
__attribute__((target("avx2,fma"))) void add_scaled(Floats& sums, float x, const Floats& values) {
  for (size_t n = 0; n < 16; ++n) sums[n] = flushed(__builtin_fmaf(x, values[n], sums[n]));
}

}  // namespace

void TileUnit::load_config(const void* bytes64) {
  std::array<uint8_t, 64> bytes;
  std::memcpy(bytes.data(), bytes64, 64);
  require(bytes[0] == 1, "LDTILECFG: palette is not 1");
  require(bytes[1] == 0, "LDTILECFG: start row is not 0");
  for (size_t i = 2; i < 16; ++i) require(bytes[i] == 0, "LDTILECFG: reserved byte is not 0");
  std::array<Tile, 8> tiles;
  for (size_t i = 0; i < 16; ++i) {
    const int row_bytes = bytes[16 + 2 * i] + 256 * bytes[17 + 2 * i];
    const int rows = bytes[48 + i];
    require(i < 8 || (row_bytes == 0 && rows == 0), "LDTILECFG: there are 8 tiles");
    require(row_bytes <= 64 && rows <= 16, "LDTILECFG: tile beyond 16 rows of 64 bytes");
    require((row_bytes == 0) == (rows == 0), "LDTILECFG: rows without bytes or bytes without rows");
    if (i < 8) tiles[i].rows = rows, tiles[i].row_bytes = row_bytes;
  }
  tiles_ = tiles;
  has_config_ = true;
}

void TileUnit::release() {
  tiles_ = {};
  has_config_ = false;
}

TileUnit::Tile& TileUnit::configured(int tile) {
  require(has_config_, "tiles are not configured");
  require(tile >= 0 && tile < 8, "no such tile");
  Tile& found = tiles_[static_cast<size_t>(tile)];
  require(found.rows > 0, "this tile is not configured");
  return found;
}

void TileUnit::zero(int tile) { configured(tile).data = {}; }

void TileUnit::load(int tile, const char* memory, int64_t stride) {
  Tile& to = configured(tile);
  to.data = {};
  for (int r = 0; r < to.rows; ++r) {
    std::memcpy(to.data[static_cast<size_t>(r)].data(), memory + r * stride,
                static_cast<size_t>(to.row_bytes));
  }
}

void TileUnit::store(int tile, char* memory, int64_t stride) const {
  const Tile& from = const_cast<TileUnit*>(this)->configured(tile);
  for (int r = 0; r < from.rows; ++r) {
    std::memcpy(memory + r * stride, from.data[static_cast<size_t>(r)].data(),
                static_cast<size_t>(from.row_bytes));
  }
}

void TileUnit::add_products(int sums, int a, int b) {
  Tile& to = configured(sums);
  const Tile& left = configured(a);
  const Tile& right = configured(b);
  require(sums != a && sums != b && a != b, "TDPBF16PS: one tile twice");
  require(to.row_bytes % 4 == 0 && left.row_bytes % 4 == 0 && right.row_bytes % 4 == 0,
          "TDPBF16PS: rows are not pairs");
  require(to.rows == left.rows, "TDPBF16PS: rows of the sums and of the first operand differ");
  require(to.row_bytes == right.row_bytes, "TDPBF16PS: columns of the sums and the second differ");
  require(left.row_bytes / 4 == right.rows, "TDPBF16PS: depths of the operands differ");
  const auto depth = static_cast<size_t>(right.rows);
  // The first and the second elements of the pairs are summed by themselves.
  std::array<std::array<Floats, 16>, 2> weights;
  for (size_t which = 0; which < 2; ++which) {
    for (size_t k = 0; k < depth; ++k) weights[which][k] = widened(right.data[k], which);
  }
  for (size_t m = 0; m < static_cast<size_t>(to.rows); ++m) {
    Floats sum;
    std::memcpy(sum.data(), to.data[m].data(), 64);
    std::array<Floats, 2> parts{};
    for (size_t which = 0; which < 2; ++which) {
      const Floats x = widened(left.data[m], which);
      for (size_t k = 0; k < depth; ++k) add_scaled(parts[which], x[k], weights[which][k]);
    }
    for (size_t n = 0; n < 16; ++n) {
      sum[n] = flushed(flushed(sum[n]) + flushed(parts[0][n] + parts[1][n]));
    }
    to.data[m] = {};
    std::memcpy(to.data[m].data(), sum.data(), static_cast<size_t>(to.row_bytes));
  }
}

// --- traps

namespace {

std::atomic<int64_t> tile_products{0};
thread_local TileUnit tiles_of_this_thread;

/// An instruction of VEX.128.0F38.W0 with opcode 49, 4B or 5C.
struct Instruction {
  int prefix = 0, opcode = 0;       // prefix: 0 none, 1 66, 2 F3, 3 F2
  int reg = 0, rm = 0, third = -1;  // ModRM:reg, ModRM:r/m, VEX.vvvv
  char* memory = nullptr;           // of ModRM:r/m: base and displacement; nullptr: a register
  int64_t index = 0;                // scaled; not in `memory`
  int length = 0;
};

bool decode(const greg_t* registers, Instruction* out) {
  static constexpr std::array<int, 16> kRegisters{
      REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
      REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  const auto value = [&](int number) { return registers[kRegisters[static_cast<size_t>(number)]]; };
  const auto* code = reinterpret_cast<const uint8_t*>(registers[REG_RIP]);
  if (code[0] != 0xc4 || (code[1] & 0x1f) != 2 || (code[2] & 0x84) != 0) return false;
  out->opcode = code[3];
  if (out->opcode != 0x49 && out->opcode != 0x4b && out->opcode != 0x5c) return false;
  out->prefix = code[2] & 3;
  out->third = ~(code[2] >> 3) & 15;
  const int more_reg = (code[1] & 0x80) == 0 ? 8 : 0;
  const int more_index = (code[1] & 0x40) == 0 ? 8 : 0;
  const int more_base = (code[1] & 0x20) == 0 ? 8 : 0;
  const int mode = code[4] >> 6;
  const int rm = code[4] & 7;
  out->reg = (code[4] >> 3 & 7) + more_reg;
  out->rm = rm + more_base;
  out->length = 5;
  if (mode == 3) return true;
  int base = rm;
  if (rm == 4) {
    const int sib = code[out->length++];
    const int index = (sib >> 3 & 7) + more_index;
    if (index != 4) out->index = value(index) << (sib >> 6);
    base = sib & 7;
  }
  if (mode == 0 && base == 5) return false;  // no base register: no code of ours has it
  int64_t address = value(base + more_base);
  if (mode == 1) {
    int8_t offset;
    std::memcpy(&offset, code + out->length, 1);
    address += offset;
    out->length += 1;
  } else if (mode == 2) {
    int32_t offset;
    std::memcpy(&offset, code + out->length, 4);
    address += offset;
    out->length += 4;
  }
  out->memory = reinterpret_cast<char*>(address);
  return true;
}

bool execute(const Instruction& i, TileUnit& unit) {
  const bool memory = i.memory != nullptr;
  const bool no_third = i.third == 0;
  if (i.opcode == 0x49 && i.prefix == 0 && memory && i.reg == 0 && no_third) {
    unit.load_config(i.memory + i.index);
  } else if (i.opcode == 0x49 && i.prefix == 0 && !memory && i.reg == 0 && i.rm == 0 && no_third) {
    unit.release();
  } else if (i.opcode == 0x49 && i.prefix == 3 && !memory && i.rm == 0 && no_third) {
    unit.zero(i.reg);
  } else if (i.opcode == 0x4b && i.prefix == 3 && memory && no_third) {
    unit.load(i.reg, i.memory, i.index);
  } else if (i.opcode == 0x4b && i.prefix == 2 && memory && no_third) {
    unit.store(i.reg, i.memory, i.index);
  } else if (i.opcode == 0x5c && i.prefix == 2 && !memory) {
    unit.add_products(i.reg, i.rm, i.third);
    ++tile_products;
  } else {
    return false;
  }
  return true;
}

void on_illegal_instruction(int, siginfo_t*, void* context) {
  greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  Instruction instruction;
  try {
    if (decode(registers, &instruction) && execute(instruction, tiles_of_this_thread)) {
      registers[REG_RIP] += instruction.length;
      return;
    }
  } catch (const std::logic_error& error) {
    std::fprintf(stderr, "AMX: %s\n", error.what());
    std::abort();
  }
  signal(SIGILL, SIG_DFL);  // not ours: the instruction traps again, and that is the end
}

}  // namespace

void install_amx_traps() {
  struct sigaction action = {};
  action.sa_sigaction = on_illegal_instruction;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGILL, &action, nullptr);
}

int64_t emulated_tile_products() { return tile_products; }

bool emulated_tiles_are_configured() { return tiles_of_this_thread.has_config(); }

}  // namespace blockscope::testing

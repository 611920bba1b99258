// Reference kernels of constants and elementwise primitives.

#include <cmath>
#include <limits>

#include "ir/primitives.h"
#include "ir/reference_kernel.h"

namespace graft::reference {
namespace {

template <typename F>
void map_floats(const KernelCall& call, F f) {
  const std::vector<double>& x = call.in[0]->floats;
  for (size_t i = 0; i < x.size(); ++i) call.out[0].floats[i] = f(x[i]);
}

template <double (*f)(double)>
void unary(const KernelCall& call) {
  map_floats(call, f);
}

template <typename F>
void map_integers(const KernelCall& call, F f) {
  const std::vector<int64_t>& x = call.in[0]->integers;
  const DType dtype = call.out[0].type.dtype;
  for (size_t i = 0; i < x.size(); ++i) call.out[0].integers[i] = wrap(f(x[i]), dtype);
}

template <typename Float, typename Integer>
void binary(const KernelCall& call, Float on_floats, Integer on_integers) {
  const Array &a = *call.in[0], &b = *call.in[1];
  Array& out = call.out[0];
  for (size_t i = 0; i < a.floats.size(); ++i) out.floats[i] = on_floats(a.floats[i], b.floats[i]);
  for (size_t i = 0; i < a.integers.size(); ++i) {
    out.integers[i] = wrap(on_integers(a.integers[i], b.integers[i]), out.type.dtype);
  }
}

template <typename Integer>
void integer_binary(const KernelCall& call, Integer f) {
  binary(
      call, [](double, double) { return 0.0; }, f);
}

// Modulo 2^64, where signed arithmetic would be undefined.
template <typename F>
int64_t modular(int64_t a, int64_t b, F f) {
  return static_cast<int64_t>(f(static_cast<uint64_t>(a), static_cast<uint64_t>(b)));
}

double float_sign(double x) {
  if (std::isnan(x) || x == 0) return x;
  return x > 0 ? 1 : -1;
}

double float_max(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
  return a > b ? a : b;
}

double float_min(double a, double b) { return -float_max(-a, -b); }

// Truncates towards zero. x / 0 has every bit set.
int64_t integer_div(int64_t a, int64_t b) {
  if (b == 0) return -1;
  if (b == -1) return modular(0, a, std::minus<>());
  return a / b;
}

int64_t shift_left(int64_t a, int64_t bits, DType dtype) {
  if (bits < 0 || bits >= dtype_bits(dtype)) return 0;
  return modular(a, bits, [](uint64_t v, uint64_t n) { return v << n; });
}

int64_t shift_right(int64_t a, int64_t bits, DType dtype) {
  const int width = dtype_bits(dtype);
  if (bits < 0 || bits >= width) return 0;
  const uint64_t mask = width == 64 ? ~uint64_t{0} : (uint64_t{1} << width) - 1;
  return static_cast<int64_t>((static_cast<uint64_t>(a) & mask) >> bits);
}

template <typename T>
bool holds(const std::string& direction, T a, T b) {
  if (direction == "EQ") return a == b;
  if (direction == "NE") return a != b;
  if (direction == "LT") return a < b;
  if (direction == "LE") return a <= b;
  if (direction == "GT") return a > b;
  return a >= b;
}

void compare(const KernelCall& call) {
  const std::string& direction = call.attributes().text("direction");
  const Array &a = *call.in[0], &b = *call.in[1];
  std::vector<int64_t>& out = call.out[0].integers;
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = a.is_float() ? holds(direction, a.floats[i], b.floats[i])
                          : holds(direction, a.integers[i], b.integers[i]);
  }
}

void select(const KernelCall& call) {
  const std::vector<int64_t>& condition = call.in[0]->integers;
  const Array &a = *call.in[1], &b = *call.in[2];
  Array& out = call.out[0];
  for (size_t i = 0; i < condition.size(); ++i) {
    if (out.is_float()) {
      out.floats[i] = condition[i] != 0 ? a.floats[i] : b.floats[i];
    } else {
      out.integers[i] = condition[i] != 0 ? a.integers[i] : b.integers[i];
    }
  }
}

// Truncated towards zero, and the nearest that the type holds; NaN becomes 0.
int64_t to_integer(double x, DType dtype) {
  if (dtype == DType::kBool) return x != 0;
  if (std::isnan(x)) return 0;
  const int bits = dtype_bits(dtype);
  const bool is_unsigned = dtype == DType::kU4 || dtype == DType::kU8 || dtype == DType::kU32;
  const double low = is_unsigned ? 0 : -std::ldexp(1, bits - 1);
  const double beyond = std::ldexp(1, is_unsigned ? bits : bits - 1);
  if (x <= low) return static_cast<int64_t>(low);
  if (x >= beyond) {
    return bits == 64 ? std::numeric_limits<int64_t>::max() : static_cast<int64_t>(beyond - 1);
  }
  return static_cast<int64_t>(x);
}

void convert(const KernelCall& call) {
  const Array& x = *call.in[0];
  Array& out = call.out[0];
  const DType dtype = out.type.dtype;
  const auto count = static_cast<size_t>(x.elements());
  for (size_t i = 0; i < count; ++i) {
    if (x.is_float() && out.is_float()) {
      out.floats[i] = x.floats[i];
    } else if (x.is_float()) {
      out.integers[i] = to_integer(x.floats[i], dtype);
    } else if (out.is_float()) {
      out.floats[i] = static_cast<double>(x.integers[i]);
    } else {
      out.integers[i] = wrap(x.integers[i], dtype);
    }
  }
}

void splat(const KernelCall& call) {
  Array& out = call.out[0];
  const double value = call.attributes().f64("value");
  if (out.is_float()) {
    out.floats.assign(out.floats.size(), value);
  } else {
    out.integers.assign(out.integers.size(), to_integer(value, out.type.dtype));
  }
}

void iota(const KernelCall& call) {
  Array& out = call.out[0];
  const auto axis = static_cast<size_t>(call.attributes().i64("axis"));
  std::vector<int64_t> counts(out.type.shape.size(), 0);
  counts[axis] = 1;
  walk(out.type.shape, row_major_strides(out.type.shape), counts,
       [&](int64_t place, int64_t count) {
         const auto i = static_cast<size_t>(place);
         if (out.is_float()) {
           out.floats[i] = static_cast<double>(count);
         } else {
           out.integers[i] = wrap(count, out.type.dtype);
         }
       });
}

double rsqrt(double x) { return 1 / std::sqrt(x); }
double logistic(double x) { return 1 / (1 + std::exp(-x)); }

void add_unary(KernelTable& table) {
  table[&kNeg] = [](const KernelCall& c) {
    map_floats(c, [](double x) { return -x; });
    map_integers(c, [](int64_t x) { return modular(0, x, std::minus<>()); });
  };
  table[&kAbs] = [](const KernelCall& c) {
    map_floats(c, [](double x) { return std::abs(x); });
    map_integers(c, [](int64_t x) { return x < 0 ? modular(0, x, std::minus<>()) : x; });
  };
  table[&kSign] = [](const KernelCall& c) {
    map_floats(c, float_sign);
    map_integers(
        c, [](int64_t x) { return static_cast<int64_t>(x > 0) - static_cast<int64_t>(x < 0); });
  };
  table[&kNot] = [](const KernelCall& c) {
    const bool logical = c.in[0]->type.dtype == DType::kBool;
    map_integers(c, [&](int64_t x) { return logical ? static_cast<int64_t>(x == 0) : ~x; });
  };
  table[&kIsFinite] = [](const KernelCall& c) {
    for (size_t i = 0; i < c.in[0]->floats.size(); ++i) {
      c.out[0].integers[i] = std::isfinite(c.in[0]->floats[i]);
    }
  };
  table[&kExp] = unary<std::exp>;
  table[&kLog] = unary<std::log>;
  table[&kLog1p] = unary<std::log1p>;
  table[&kSqrt] = unary<std::sqrt>;
  table[&kRsqrt] = unary<rsqrt>;
  table[&kTanh] = unary<std::tanh>;
  table[&kLogistic] = unary<logistic>;
  table[&kCos] = unary<std::cos>;
  table[&kSin] = unary<std::sin>;
  table[&kFloor] = unary<std::floor>;
  table[&kConvert] = convert;
}

void add_binary(KernelTable& table) {
  table[&kAdd] = [](const KernelCall& c) {
    binary(c, std::plus<double>(), [](auto a, auto b) { return modular(a, b, std::plus<>()); });
  };
  table[&kSub] = [](const KernelCall& c) {
    binary(c, std::minus<double>(), [](auto a, auto b) { return modular(a, b, std::minus<>()); });
  };
  table[&kMul] = [](const KernelCall& c) {
    binary(c, std::multiplies<double>(),
           [](auto a, auto b) { return modular(a, b, std::multiplies<>()); });
  };
  table[&kDiv] = [](const KernelCall& c) { binary(c, std::divides<double>(), integer_div); };
  table[&kMax] = [](const KernelCall& c) {
    binary(c, float_max, [](int64_t a, int64_t b) { return a > b ? a : b; });
  };
  table[&kMin] = [](const KernelCall& c) {
    binary(c, float_min, [](int64_t a, int64_t b) { return a < b ? a : b; });
  };
  table[&kPow] = [](const KernelCall& c) {
    binary(
        c, [](double a, double b) { return std::pow(a, b); },
        [](int64_t, int64_t) { return int64_t{0}; });
  };
  table[&kAnd] = [](const KernelCall& c) { integer_binary(c, std::bit_and<int64_t>()); };
  table[&kOr] = [](const KernelCall& c) { integer_binary(c, std::bit_or<int64_t>()); };
  table[&kXor] = [](const KernelCall& c) { integer_binary(c, std::bit_xor<int64_t>()); };
  table[&kShiftLeft] = [](const KernelCall& c) {
    const DType dtype = c.out[0].type.dtype;
    integer_binary(c, [&](int64_t a, int64_t b) { return shift_left(a, b, dtype); });
  };
  table[&kShiftRight] = [](const KernelCall& c) {
    const DType dtype = c.out[0].type.dtype;
    integer_binary(c, [&](int64_t a, int64_t b) { return shift_right(a, b, dtype); });
  };
}

}  // namespace

int64_t wrap(int64_t v, DType dtype) {
  switch (dtype) {
    case DType::kBool: return v != 0;
    case DType::kU4: return v & 0xF;
    case DType::kS4: return ((v & 0xF) ^ 0x8) - 0x8;
    case DType::kU8: return static_cast<uint8_t>(v);
    case DType::kS8: return static_cast<int8_t>(v);
    case DType::kU32: return static_cast<uint32_t>(v);
    case DType::kS32: return static_cast<int32_t>(v);
    default: return v;
  }
}

std::vector<int64_t> row_major_strides(const Shape& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t axis = shape.size(); axis-- > 0;) {
    strides[axis] = stride;
    stride *= shape[axis];
  }
  return strides;
}

void add_elementwise_kernels(KernelTable& table) {
  add_unary(table);
  add_binary(table);
  table[&kCompare] = compare;
  table[&kSelect] = select;
  table[&kSplat] = splat;
  table[&kIota] = iota;
}

}  // namespace graft::reference

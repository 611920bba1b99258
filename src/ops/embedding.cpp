#include "ops/embedding.h"

#include "ops/common.h"

namespace graft {
namespace {

std::vector<Type> infer_embedding(const Call& call) {
  const OperandCheck check(kEmbedding, call);
  check.count(2);
  const auto layout = packed_layout(call.attributes);
  if (layout) {
    check.is(0, "table", DType::kU8, layout->stored_shape());
  } else {
    check.array(0, "table", 2);
  }
  const Type table = weight_type(call.operands[0], call.attributes);
  const Type& ids = call.operands[1];
  check.is(1, "ids", DType::kS32, ids.shape);
  const DType dtype = call.attributes.dtype("dtype");
  check.that(is_float(dtype), "the result must be of a float type");
  Shape shape = ids.shape;
  shape.push_back(table.shape[1]);
  return {{dtype, shape}};
}

std::vector<Value> decompose_embedding(Graph&, std::span<const Value> operands, const Call& call) {
  const DType dtype = call.attributes.dtype("dtype");
  if (const auto layout = packed_layout(call.attributes)) {
    if (!layout->by_rows()) return {gather(unpack(*layout, operands[0], dtype), operands[1])};
    // The rows asked for alone, expanded as a matrix of their own.
    const Value rows = gather(operands[0], operands[1]);
    PackedLayout few = *layout;
    few.rows = operands[1].type().elements();
    Shape shape = operands[1].shape();
    shape.push_back(layout->columns);
    return {reshape(unpack(few, reshape(rows, few.stored_shape()), dtype), shape)};
  }
  return {convert(gather(operands[0], operands[1]), dtype)};
}

void embedding_gradient(GradientContext& context) {
  if (!context.needs(0)) return;
  if (packed_layout(context.attributes())) refuse_gradient(context, 0, "a packed table");
  context.set(0, context.graph().add1(kEmbeddingGrad, {context.cotangent(0), context.operand(1)},
                                      {{"rows", context.operand(0).dim(0)}}));
}

std::vector<Type> infer_embedding_grad(const Call& call) {
  const OperandCheck check(kEmbeddingGrad, call);
  check.count(2);
  const Type& dy = check.array_at_least(0, "dy", 1);
  const Shape rows(dy.shape.begin(), dy.shape.end() - 1);
  check.is(1, "ids", DType::kS32, rows);
  return {{compute_dtype(dy.dtype), {call.attributes.i64("rows"), dy.shape.back()}}};
}

std::vector<Value> decompose_embedding_grad(Graph& graph, std::span<const Value> operands,
                                            const Call& call) {
  const Value dy = operands[0];
  const DType dtype = compute_dtype(dy.dtype());
  const int64_t width = dy.dim(-1);
  const int64_t count = operands[1].type().elements();
  const Value table = splat(graph, 0, {dtype, {call.attributes.i64("rows"), width}});
  return {scatter_add(table, reshape(operands[1], {count}),
                      reshape(convert(dy, dtype), {count, width}))};
}

}  // namespace

const Op kEmbedding{.name = "embedding",
                    .infer = infer_embedding,
                    .gradient = embedding_gradient,
                    .decompose = decompose_embedding};

const Op kEmbeddingGrad{
    .name = "embedding_grad", .infer = infer_embedding_grad, .decompose = decompose_embedding_grad};

Value embedding(const Weight& table, Value ids, DType dtype) {
  Attributes attributes{{"dtype", dtype}};
  set_packed(attributes, table);
  return ids.graph().add1(kEmbedding, {table.value, ids}, std::move(attributes));
}

}  // namespace graft

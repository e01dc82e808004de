// Saves checkpoints in the background while a training loop goes on changing the weights.
//
//   save_async checkpoint.safetensors
#include <iostream>
#include <optional>
#include <vector>

#include "penstock/error.h"
#include "penstock/reader.h"
#include "penstock/writer.h"

namespace {

constexpr std::int64_t kWeights = 1 << 20;

void train_one_step(std::vector<float>& weights) {
  for (float& weight : weights) weight += 1;
}

penstock::SaveJob start_save(const char* path, const std::vector<float>& weights, int step) {
  penstock::SaveOptions options;
  options.metadata = {{"step", std::to_string(step)}};
  penstock::Writer writer(path, options);
  writer.add("weights", penstock::DType::kF32, {kWeights}, weights.data());
  return penstock::save_async(std::move(writer));
}

void train(const char* path) {
  std::vector<float> weights(kWeights, 0);
  std::optional<penstock::SaveJob> job;
  for (int step = 1; step <= 3; ++step) {
    train_one_step(weights);
    // One at a time: wait() throws what went wrong with the previous one.
    if (job) job->wait();
    job = start_save(path, weights, step);
    // A snapshot is being taken; once it is there, the weights may change again while it is written.
    job->staged();
  }
  train_one_step(weights);  // does not reach the file
  job->wait();
}

// The weights of the last checkpoint are all equal to its step.
void check(const char* path) {
  const penstock::Reader reader{std::filesystem::path(path)};
  const penstock::LoadResult loaded = reader.load();
  const float first = loaded.tensors.at(0).data<float>()[0];
  if (std::to_string(static_cast<int>(first)) != reader.metadata().at("step")) {
    throw penstock::Error(penstock::ErrorKind::kChanged, std::string(path) + ": the weights are of another step");
  }
  std::cout << "training went on while 3 checkpoints were saved, the last one from step " << first << "\n";
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count != 2) {
    std::cerr << "usage: save_async FILE\n";
    return 2;
  }
  try {
    train(arguments[1]);
    check(arguments[1]);
  } catch (const penstock::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}

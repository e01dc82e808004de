// The smallest program that uses an installed penstock: counts the tensors of a checkpoint.
#include <iostream>

#include "penstock/penstock.h"

int main(int argument_count, char** arguments) {
  if (argument_count != 2) {
    std::cerr << "usage: consumer PATH\n";
    return 2;
  }
  try {
    const penstock::Reader reader{std::filesystem::path(arguments[1])};
    std::cout << "penstock " << penstock::version() << ": " << reader.tensors().size() << " tensors\n";
  } catch (const penstock::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}

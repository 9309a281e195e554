// Nothing: cuda_on_cpu.h, which every source is compiled with, has what this header of CUDA's has.

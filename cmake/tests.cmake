# tests/<layer>/test_x.c     a part of the executable test_<layer>, which "test_<layer> x" runs, and a test
#                            test_<layer>_x, label <layer>; exit status 77: skipped
# tests/<layer>/test_x.sh    a test script; FSDP is the program with src/check, FSDP_BUILD the build folder, FSDP_SOURCE the sources
# tests/<layer>/program_x.c  a helper executable program_x beside the tests, not a test itself
# tests/faults/...           the same, for faults of the whole program: links what the program links
# tests/cluster/...         the same, on several machines that are namespaces of this one (machines.sh)
# tests/faults/preload_x.c   a library preload_x.so for LD_PRELOAD, beside the tests
# tests/comm/plugin_x.c      a library libfsdp-x.so, beside the tests
# tests/comm/preload_stuck.c one preload_stuck_x.so for each MPI that is found
# tests/tools/test_x.sh      a test tools_x of what checks and builds the sources
# tests/<folder>/y.c         anything else: a helper, compiled once; a program takes those that it uses
# tests/fuzz/fuzz_x.c        LLVMFuzzerTestOneInput: "fuzz x" replays corpus/x and runs random mutations of it
# tests/fuzz/x.dict          words of its language, for libFuzzer (tools/fuzz.sh)
# examples/x.cu              runs as it is, where there is CUDA's compiler
# examples/x.c               runs as it is, and on the ranks its comment says in "fsdp run -n N", in folders of their own

find_library(CMOCKA_LIBRARY cmocka REQUIRED)
set(test_dir ${PROJECT_BINARY_DIR}/tests)

# The program that tests start: the one that is shipped, and src/check.
if(TARGET fsdp)
  add_executable(fsdp_checked ${fsdp_objects_cli} ${fsdp_objects_check})
  target_link_libraries(fsdp_checked PRIVATE fsdp_static fsdp_common)
  set_target_properties(fsdp_checked PROPERTIES OUTPUT_NAME fsdp RUNTIME_OUTPUT_DIRECTORY ${test_dir})
  if(fsdp_plugins)
    add_dependencies(fsdp_checked ${fsdp_plugins})
  endif()
endif()

# The helpers of each folder are an archive: what a program does not use may need layers that it does not link. A helper
# may use those of layers below its own. Sets fsdp_test_helpers, from the bottom up.
set(fsdp_test_folders ${fsdp_layers} faults cluster)
set(fsdp_link_faults ${fsdp_link_cli})
set(fsdp_link_cluster ${fsdp_link_cli})
add_library(fsdp_test_check STATIC ${fsdp_objects_check})
set_target_properties(fsdp_test_check PROPERTIES LINKER_LANGUAGE C)
set(fsdp_test_helpers fsdp_test_check)
foreach(folder support oracle ${fsdp_test_folders})
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${folder}/*.c)
  list(FILTER sources EXCLUDE REGEX "/(test|program|preload|plugin)_[^/]*$")
  if(sources)
    add_library(fsdp_test_${folder} STATIC ${sources})
    target_link_libraries(fsdp_test_${folder} PRIVATE fsdp_common)
    target_include_directories(fsdp_test_${folder} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
    target_compile_definitions(fsdp_test_${folder} PRIVATE TEST_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                                                           TEST_BINARY_DIR="${PROJECT_BINARY_DIR}")
    list(APPEND fsdp_test_helpers fsdp_test_${folder})
  endif()
endforeach()

option(FSDP_TEST_LONG "all there is to run, which takes hours (make test-long)" OFF)

# CUDA kernels as C++ of the host (tests/backend/cudash), with the compiler of C's kind.
if(CMAKE_C_COMPILER_ID MATCHES "Clang" AND NOT CMAKE_CXX_COMPILER AND NOT DEFINED ENV{CXX})
  set(CMAKE_CXX_COMPILER clang++)
endif()
enable_language(CXX)
set(cudash ${PROJECT_SOURCE_DIR}/tests/backend/cudash)
set(cudash_sources ${cudash}/cudash.cpp ${cudash}/fiber.cpp ${cudash}/shared.cpp ${cudash}/warp.cpp)
set(cudash_link)
if(FSDP_SANITIZE MATCHES "thread")  # which is told what threads there are
  set_source_files_properties(${cudash_sources} PROPERTIES COMPILE_OPTIONS "-O2;-fno-sanitize=thread;-DCUDASH_TSAN")
  foreach(access read1 read2 read4 read8 read16 write1 write2 write4 write8 write16)  # shared.cpp sees them first
    list(APPEND cudash_link -Wl,--wrap=__tsan_${access})
    if(NOT access MATCHES "[a-z]1$")
      list(APPEND cudash_link -Wl,--wrap=__tsan_unaligned_${access})
    endif()
  endforeach()
  list(APPEND cudash_link -Wl,--wrap=memcpy -Wl,--wrap=memset)
else()
  set_source_files_properties(${cudash_sources} PROPERTIES COMPILE_OPTIONS -O2)
endif()
file(GLOB kernels CONFIGURE_DEPENDS ${cudash}/*.cu)
set_source_files_properties(${fsdp_cuda_kernels} ${kernels} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-xc++")
set(cudash_optimization -O1)
if(FSDP_SANITIZE MATCHES "address")  # with it to optimise takes four times as long, and longer than the tests
  set(cudash_optimization -O0)
  if(FSDP_SANITIZE MATCHES "undefined")  # as of the CPU's kernels (src/backend/cpu/flags.cmake)
    list(APPEND cudash_optimization -fno-sanitize=null,object-size,pointer-overflow)
  endif()
  if(CMAKE_C_COMPILER_ID STREQUAL "GNU")  # a kernel keeps no pointer to a frame: what it writes are numbers
    list(APPEND cudash_optimization --param=asan-use-after-return=0)
  endif()
endif()
add_library(fsdp_cudash_common INTERFACE)
target_compile_features(fsdp_cudash_common INTERFACE cxx_std_17)
target_compile_definitions(fsdp_cudash_common INTERFACE FSDP_CUDASH)
target_compile_options(fsdp_cudash_common INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${cudash_optimization};${FSDP_DEBUG_INFO};-ffp-contract=off>)
target_include_directories(fsdp_cudash_common INTERFACE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/tests/backend)
target_link_libraries(fsdp_cudash_common INTERFACE fsdp_common)
target_link_options(fsdp_cudash_common INTERFACE ${cudash_link})
add_library(fsdp_test_cudash OBJECT ${cudash_sources} ${fsdp_cuda_kernels})
set_target_properties(fsdp_test_cudash PROPERTIES CXX_VISIBILITY_PRESET hidden)
target_link_libraries(fsdp_test_cudash PUBLIC fsdp_cudash_common)

# The parts of CUDA's runtime and of its library of products that the plug-in calls, where their headers are
# (tests/backend/fakecuda).
find_path(FSDP_CUDA_HEADERS cublasLt.h HINTS /usr/local/cuda/include)
set(fake ${PROJECT_SOURCE_DIR}/tests/backend/fakecuda)
function(fsdp_fake_library name kind)
  add_library(${name} ${kind} ${ARGN})
  target_compile_features(${name} PRIVATE cxx_std_17)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/tests/backend)
  target_include_directories(${name} SYSTEM PUBLIC ${FSDP_CUDA_HEADERS})
  set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${test_dir})
endfunction()
if(FSDP_CUDA_HEADERS)
  fsdp_fake_library(fakecudart SHARED ${fake}/fake_device.c ${fake}/fake_memory.c ${fake}/fake_stream.c
                    ${fake}/fake_copy.c ${fake}/fake_ones.c ${fake}/fake_peers.c ${fake}/fake_hardware.c ${cudash}/thread.c)
  target_link_libraries(fakecudart PRIVATE fsdp_common)
  set_target_properties(fakecudart PROPERTIES C_VISIBILITY_PRESET default)
  target_compile_definitions(fakecudart INTERFACE FSDP_HAVE_FAKECUDA)
  fsdp_fake_library(fakecublas MODULE ${fake}/fake_blas.c ${fake}/fake_blas_run.c
                    ${PROJECT_SOURCE_DIR}/tests/oracle/values.c)
  target_link_libraries(fakecublas PRIVATE fakecudart fsdp_common m)
  target_compile_options(fakecublas PRIVATE -O3 -fassociative-math -fno-signed-zeros -fno-trapping-math)
  set_target_properties(fakecublas PROPERTIES C_VISIBILITY_PRESET default OUTPUT_NAME cublasLt SUFFIX .so.13)

  # The plug-in with the runtime above in place of CUDA's, and its kernels by the host's compiler.
  set(sources ${fsdp_cuda_sources})
  list(FILTER sources EXCLUDE REGEX "/kernels_table.c$")  # fake_kernels.c has its table
  fsdp_fake_library(fsdp_test_cuda MODULE ${sources} ${fake}/fake_kernels.c ${fake}/fake_launch.cpp
                    $<FILTER:${fsdp_objects_check},INCLUDE,/kernel_> ${PROJECT_SOURCE_DIR}/src/device/kernel_buffers.c
                    ${PROJECT_SOURCE_DIR}/src/device/kernel_buffers_optim.c
                    ${PROJECT_SOURCE_DIR}/src/device/kernel_tables.c ${PROJECT_SOURCE_DIR}/src/base/dtype.c
                    ${PROJECT_SOURCE_DIR}/src/base/limits.c)
  target_link_libraries(fsdp_test_cuda PRIVATE fsdp_test_cudash fakecudart fsdp_common ${CMAKE_DL_LIBS})
  target_compile_definitions(fsdp_test_cuda PRIVATE FSDP_CUDA_OLDEST=${FSDP_CUDA_OLDEST}
                                                    FSDP_PRODUCT_ROWS="backend/fakecuda/product_rows.inc")
  target_link_options(fsdp_test_cuda PRIVATE -Wl,-Bsymbolic -Wl,--wrap=fsdp__stream_workspace)
  set_target_properties(fsdp_test_cuda PROPERTIES OUTPUT_NAME fsdp-cuda CXX_VISIBILITY_PRESET hidden)
  add_dependencies(fsdp_test_cuda fakecublas)
  if(NOT FSDP_SANITIZE)  # its test is a script of tests/tools, which are not among the tests then
    add_executable(fsdp_test_bench_products ${fsdp_bench_products})
    target_include_directories(fsdp_test_bench_products PRIVATE ${PROJECT_SOURCE_DIR}/bench)
    target_include_directories(fsdp_test_bench_products SYSTEM PRIVATE ${FSDP_CUDA_HEADERS})
    target_link_libraries(fsdp_test_bench_products PRIVATE fsdp_static fsdp_common fakecudart)
    set_target_properties(fsdp_test_bench_products PROPERTIES OUTPUT_NAME bench_products
                                                              RUNTIME_OUTPUT_DIRECTORY ${test_dir})
  endif()
  fsdp_fake_library(fakecudnn MODULE ${fake}/fake_cudnn.c ${fake}/fake_cudnn_run.c
                    ${PROJECT_SOURCE_DIR}/tests/oracle/values.c)
  target_link_libraries(fakecudnn PRIVATE fakecudart fsdp_common m)
  set_target_properties(fakecudnn PROPERTIES OUTPUT_NAME cudnn SUFFIX .so.9)
  fsdp_fake_library(fakenccl MODULE ${fake}/fake_nccl.c ${fake}/fake_nccl_memory.c ${fake}/fake_nccl_run.c
                    ${PROJECT_SOURCE_DIR}/tests/oracle/values.c ${PROJECT_SOURCE_DIR}/src/comm/health/futex.c)
  target_link_libraries(fakenccl PRIVATE fakecudart fsdp_common m)
  set_target_properties(fakenccl PROPERTIES C_VISIBILITY_PRESET default OUTPUT_NAME nccl SUFFIX .so.2)
  fsdp_fake_library(fakenvrtc MODULE ${fake}/fake_nvrtc.c)
  set_target_properties(fakenvrtc PROPERTIES OUTPUT_NAME nvrtc SUFFIX .so.13)
  fsdp_fake_library(fakenvml MODULE ${fake}/fake_nvml.c)
  set_target_properties(fakenvml PROPERTIES C_VISIBILITY_PRESET default OUTPUT_NAME nvidia-ml SUFFIX .so.1)
  add_dependencies(fsdp_test_cuda fakecudnn fakenvrtc fakenccl fakenvml)
  if(FSDP_CUPTI_INCLUDE)
    fsdp_fake_library(fakecupti MODULE ${fake}/fake_cupti.c)
    target_link_libraries(fakecupti PRIVATE fakecudart fsdp_common)
    set_target_properties(fakecupti PROPERTIES C_VISIBILITY_PRESET default OUTPUT_NAME cupti SUFFIX .so.13)
    foreach(user fakecupti fsdp_test_cuda)
      target_include_directories(${user} SYSTEM PRIVATE ${FSDP_CUPTI_INCLUDE})
    endforeach()
    target_compile_definitions(fsdp_test_cuda PRIVATE FSDP_HAVE_CUPTI)
    target_compile_definitions(fakecudart INTERFACE FSDP_HAVE_FAKECUPTI)
    add_dependencies(fsdp_test_cuda fakecupti)
  endif()
endif()

# What stands in for Arrow GLib.
add_library(fakearrow MODULE ${PROJECT_SOURCE_DIR}/tests/data/fakearrow/fake_parquet.c)
target_link_libraries(fakearrow PRIVATE fsdp_common)
set_target_properties(fakearrow PROPERTIES OUTPUT_NAME parquet-glib SUFFIX .so.2300 C_VISIBILITY_PRESET default
                                           LIBRARY_OUTPUT_DIRECTORY ${test_dir}/arrow)

# No test depends on a time: this ends those that hang, and is far from what any takes on a busy machine.
set(FSDP_TEST_TIMEOUT "" CACHE STRING "seconds after which a test is ended; empty: 1800")
if(NOT FSDP_TEST_TIMEOUT)
  set(FSDP_TEST_TIMEOUT 1800)
endif()
# These wait for most of their time. So they come early, one at a time, and the others beside them.
set(FSDP_TEST_WAITS test_comm_machines_faults test_comm_machines_stalls test_comm_mpi test_comm_stuck)

# These compute longest, in the suites where they are. So none of them is alone at the end, however it is run (.cuda, ..).
set(FSDP_TEST_LONGEST "test_(adapter_teams|backend_cuda_attention|backend_cudash|checkpoint_tensor_parallel|comm_nccl"
    "|comm_packed|comm_peer|launch_launch|ops_gelu_mlp|parallel_(attention|collectives|context|model_plan|rules)"
    "|plan_schedule|shard_(doors|hybrid|parity|random_order|random_tree|tensor_parallel|unused)|watch_trace_gpu)")
string(CONCAT FSDP_TEST_LONGEST ${FSDP_TEST_LONGEST})

# A frame that is used after its return is looked for in the layers whose threads do most of the work. It takes a third of
# the time, and what is above them hands its frames to these. Frames are on the stack then, where the sanitizer
# complains of itself when a thread is cancelled (src/cli/interrupt.c) that has an alternate stack.
set(FSDP_USE_AFTER_RETURN_EXCEPT adapter autograd chat cli compare dist explain faults format generate hub models nn ops
    optim parallel plan report state tensor tokenizer train)
# Of shard these hand their frames to all that the others do, and where it fails.
set(FSDP_USE_AFTER_RETURN_SHARD "^test_shard_(common_gpu|door_faults|faults|one_rank|random_order|random_tree)$")

# The set of instructions that oneDNN uses in the programs that some layers start: hundreds, each for a step or two. At
# the first product of a process it makes kernels for all products, which takes 30 ms of a processor for AVX-512, 12 for
# AVX2, 7 for AVX, and 1 for SSE4.1, with which products take half as long again: a run of 30 steps loses by it what a
# command that computes little gains.
set(FSDP_TEST_PROGRAMS_SET AVX)

# Where no sanitizer watches, the race check does (src/check/races.h).
function(fsdp_test_properties name layer)
  set_tests_properties(${name} PROPERTIES LABELS ${layer} TIMEOUT ${FSDP_TEST_TIMEOUT} SKIP_RETURN_CODE 77)
  if(NOT FSDP_SANITIZE AND NOT layer MATCHES "^(examples|fuzz|tools)$")  # these link no checks
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT FSDP_TEST_RACES=1)
  endif()
  if(NOT FSDP_TEST_LONG AND layer MATCHES "^(cli|cluster|faults|launch|tools)$")
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT ONEDNN_MAX_CPU_ISA=${FSDP_TEST_PROGRAMS_SET})
  endif()
  if(FSDP_SANITIZE MATCHES "address" AND NOT FSDP_TEST_LONG AND (layer IN_LIST FSDP_USE_AFTER_RETURN_EXCEPT OR
     (layer STREQUAL "shard" AND NOT name MATCHES "${FSDP_USE_AFTER_RETURN_SHARD}")))
    set_property(TEST ${name} PROPERTY ENVIRONMENT_MODIFICATION
                 ASAN_OPTIONS=string_append::detect_stack_use_after_return=0:use_sigaltstack=0:)
  endif()
  if(name MATCHES "^${FSDP_TEST_LONGEST}(\\.|$)")
    set_tests_properties(${name} PROPERTIES COST 60)
  elseif(layer MATCHES "^(train|cli|faults)$")  # nor these
    set_tests_properties(${name} PROPERTIES COST 40)
  endif()
  if(name IN_LIST FSDP_TEST_WAITS)
    set_tests_properties(${name} PROPERTIES COST 90)
    if(NOT FSDP_SANITIZE MATCHES "thread")  # which has two of them
      set_tests_properties(${name} PROPERTIES RESOURCE_LOCK waits)
    endif()
  endif()
endfunction()

# To compile the tests takes as long as to compile what they test, and they do not compute: their helpers do. So they
# are not optimised, which takes half as long; glibc's own checks need an optimising compiler.
set(fsdp_test_optimization -O0 -U_FORTIFY_SOURCE)
if(FSDP_SANITIZE MATCHES "undefined")  # what they do themselves is not looked at
  list(APPEND fsdp_test_optimization -fno-sanitize=undefined)
endif()
if(FSDP_SANITIZE MATCHES "address" AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
  # The sanitizer looks at an access in a call, not in lines of its own, which takes a tenth less to compile.
  list(APPEND fsdp_test_optimization --param asan-instrumentation-with-call-threshold=0)
endif()

# An executable that links a layer, the layers below it, and the helpers of all of them. A source that needs layers
# beside its own has a line "Links: layer layer" in a comment.
function(fsdp_test_executable name layer)
  set(objects)
  set(link ${fsdp_link_${layer}})
  foreach(source IN LISTS ARGN)
    file(STRINGS ${source} more REGEX "Links: [a-z ]+" LIMIT_COUNT 1)
    string(REGEX REPLACE ".*Links: ([a-z ]+).*" "\\1" more "${more}")
    string(REGEX MATCHALL "[a-z]+" more "${more}")
    foreach(used IN LISTS more)
      list(APPEND link ${fsdp_link_${used}})
    endforeach()
  endforeach()
  if("device" IN_LIST link)  # all that computes is checked (src/check)
    list(APPEND link ${fsdp_link_check})
  endif()
  list(REMOVE_DUPLICATES link)
  list(REMOVE_ITEM link cli)  # has a main of its own: its tests start the program
  foreach(used IN LISTS link)
    list(APPEND objects ${fsdp_objects_${used}})
  endforeach()
  set(helpers ${fsdp_test_helpers})
  list(REVERSE helpers)
  add_executable(${name} ${ARGN} ${objects})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE TEST_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                                             TEST_BINARY_DIR="${PROJECT_BINARY_DIR}")
  target_link_libraries(${name} PRIVATE ${helpers} fsdp_common ${CMOCKA_LIBRARY})
  target_compile_options(${name} PRIVATE ${fsdp_test_optimization})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${test_dir})
  if(TARGET fsdp_test_cuda AND "device" IN_LIST link)
    add_dependencies(${name} fsdp_test_cuda)
  endif()
  # These start the program itself.
  if(TARGET fsdp_checked AND layer MATCHES "^(launch|train|cli|faults|cluster)$")
    add_dependencies(${name} fsdp_checked)
  endif()
endfunction()

# The suites of these layers run a second time on devices that the host cannot touch, as <test>.sim (src/check/sim) and
# <test>.cuda (tests/backend/fakecuda), but for programs that never make one. Cases that cannot run there skip and say
# why (test_only_on_cpu). Those of comm are collectives of the host's own memory, whatever the device: the one of them
# that computes on sim (test_comm_packed) opens it itself, and the suites above run the collectives of their tensors
# there.
set(FSDP_SIM_LAYERS tensor ops autograd nn models dist parallel state checkpoint shard optim hub generate train)
set(FSDP_SIM_EXCEPT
  test_dist_mesh          # ranks and groups, and collectives of host memory
  test_dist_submesh
  test_hub_config         # config.json
  test_hub_gguf_hostile
  test_hub_gguf_tokenizer # files
  test_hub_power_cut
  test_hub_transformers   # what another program says of a saved folder
  test_models_sizes       # sizes
  test_nn_print_module    # names and shapes
  test_dist_box           # boxes
  test_checkpoint_crash   # files
  test_nn_gpu             # opens its device itself
  test_checkpoint_power_cut
  test_checkpoint_processes
  test_checkpoint_corruption
  test_checkpoint_contents
  test_checkpoint_faults
  test_optim_lr_schedule  # a formula
  test_optim_places  # on the dry device
  test_shard_cuda_faults  # opens its device itself
  test_shard_layout       # arithmetic
  test_shard_wrap_units
  test_train_run_config   # keys and values
  test_train_inputs)      # files

if(NOT FSDP_TEST_LONG) # what test_generate_generate, _checkpoint_resume, _ops_gradients and _shard_random_tree do there
  list(APPEND FSDP_SIM_EXCEPT test_autograd_backward test_autograd_node test_checkpoint_tensor_parallel
       test_models_kv_cache test_parallel_model_plan)
endif()

# Without FSDP_TEST_LONG, some layers run there only the tests of what is staged, copied or ordered otherwise than on the
# CPU, which has worker streams of its own.
set(FSDP_SIM_FEW_LAYERS)
set(FSDP_SIM_FEW test_shard_offload test_shard_overlap test_shard_parity test_shard_pipeline test_train_steps_ahead
    test_train_step)
if(FSDP_SANITIZE AND NOT FSDP_TEST_LONG)
  set(FSDP_SIM_FEW_LAYERS ${FSDP_SIM_LAYERS})
  set(FSDP_SIM_FEW test_shard_offload test_shard_overlap)
elseif(NOT FSDP_TEST_LONG) # a run is steps, and the files of the layers below; random orders make all calls there
  set(FSDP_SIM_FEW_LAYERS shard train)
  list(APPEND FSDP_SIM_FEW test_shard_batch_norm test_shard_cast test_shard_recompute test_shard_comm_hooks
       test_shard_custom test_shard_faults test_shard_flat test_shard_gather_ahead test_shard_memory
       test_shard_random_order test_shard_random_tree test_shard_schedule test_shard_summon test_train_replay
       test_train_zero1)
endif()

# A GPU's kernels run thread by thread there. Left out is what takes hours so, and is run on a GPU (tools/gpu_check.sh);
# without FSDP_TEST_LONG also what takes more than 3 s of a processor and does nothing with the device that the others do
# not. Under a sanitizer there are none without it.
set(FSDP_FAKE_EXCEPT test_generate_generate test_train_float16 test_train_reference test_train_replay
    test_train_scheduled_units)
if(FSDP_SANITIZE AND NOT FSDP_TEST_LONG)
  set(FSDP_FAKE_LAYERS)
else()
  set(FSDP_FAKE_LAYERS ${FSDP_SIM_LAYERS})
endif()
if(NOT FSDP_TEST_LONG)
  list(APPEND FSDP_FAKE_EXCEPT test_parallel_collectives
       test_parallel_context_parallel test_parallel_model_plan test_parallel_ring_attention
       test_checkpoint_tensor_parallel test_dist_pieces test_dist_redistribute
       test_hub_gguf test_hub_packed
       test_models_families test_models_kv_cache
       test_nn_module_recompute test_parallel_plan_costs test_ops_gelu_mlp test_ops_gradients test_ops_step
       test_optim_adafactor test_optim_clip test_optim_partition
       test_optim_param_groups test_optim_sharded test_shard_batch_norm test_shard_cast test_shard_comm_hooks test_shard_communication
       test_shard_custom test_shard_doors test_shard_events test_shard_extensions test_shard_faults test_shard_flat
       test_shard_fsdp1 test_shard_fsdp1_state test_shard_gather_ahead test_shard_hybrid test_shard_low_gradients
       test_shard_memory test_shard_mixed_precision test_shard_one_rank test_shard_operation test_shard_pipeline
       test_shard_recompute test_shard_replicate test_shard_schedule test_shard_slices test_shard_summon test_shard_zero
       test_state_rows test_train_full_state test_train_late_sharding test_train_step test_train_strategy
       test_train_units)
endif()

# Left out. ThreadSanitizer sees threads of one process: some start processes of one thread each, or compute
# on one; some plant races for the race check to find, which it would find as well; one has a pthread_create of its own.
set(FSDP_EXCEPT)
set(FSDP_EXCEPT_LAYERS)
if(FSDP_SANITIZE MATCHES "thread")
  set(FSDP_EXCEPT test_backend_codes test_backend_kernels test_backend_threads test_backend_values test_launch_descriptors test_cli_compare
      test_faults_compare test_cli_progress test_cli_stopped test_train_reference test_check_races test_comm_races
      test_shard_races)
  # It does not see what an MPI does to order two threads, which is compiled without it.
  list(APPEND FSDP_EXCEPT test_comm_mpi test_comm_stuck)
  set(FSDP_EXCEPT_LAYERS cluster)
  if(NOT FSDP_TEST_LONG)
    # On a GPU that is not there: kernels of test_backend_cuda_kernels, and steps that fail at every call.
    list(APPEND FSDP_EXCEPT test_backend_gpu test_shard_cuda_faults)
    # Of one thread: files, and layers whose calls are those of one rank, or go through the threads of another layer.
    list(APPEND FSDP_EXCEPT test_checkpoint_power_cut test_checkpoint_corruption test_checkpoint_crash
         test_checkpoint_processes test_data_parquet test_data_token_cache)
    # Bytes and calls that are counted; rows that test_data_tokenize's threads read, too.
    list(APPEND FSDP_EXCEPT test_shard_communication test_shard_schedule test_data_conversations test_comm_fake_machines)
    # State between steps, which no thread but the ranks' takes part in.
    list(APPEND FSDP_EXCEPT test_shard_door_faults test_shard_doors test_shard_fsdp1_state test_shard_give_back
         test_shard_given_up test_shard_layout test_shard_memory test_shard_meta test_shard_retype test_shard_shard_map
         test_shard_wrap_units)
    # What is sharded in another way on the same threads; random orders and trees draw it.
    list(APPEND FSDP_EXCEPT test_shard_extensions test_shard_fields test_shard_flat test_shard_frozen test_shard_fsdp1
         test_shard_fsdp1_options test_shard_fully_shard test_shard_gradients test_shard_low_gradients
         test_shard_mesh_info test_shard_methods test_shard_misuse test_shard_mixed_precision test_shard_outputs
         test_shard_placement test_shard_policies test_shard_replicate_misuse test_shard_roots test_shard_slices
         test_shard_summon test_shard_tied test_shard_unused test_shard_wrap test_shard_zero)
    list(APPEND FSDP_EXCEPT test_checkpoint_tensor_parallel) # saved by the threads that test_checkpoint_resume has
    # Sharded on the threads of other tests: replicas, statistics, hooks, functions of the caller's, gathers ahead, and
    # schedules.
    list(APPEND FSDP_EXCEPT test_shard_batch_norm test_shard_comm_hooks test_shard_custom test_shard_events
         test_shard_gather_ahead test_shard_hybrid test_shard_pending test_train_scheduled_units)
    # Plain calls by NCCL and by peers' memory, which test_comm_nccl_buffers, _random_calls and the faults of both make
    # as well; ranks that stand still for long, as for AddressSanitizer; and one thread that asks cuDNN for plans.
    list(APPEND FSDP_EXCEPT test_backend_cuda_attention_fast test_comm_machines_stalls test_comm_nccl test_comm_peer
         test_train_exposed)
    # Collectives by the threads of test_comm_random_calls, whose shapes have several machines, too; orders of calls that
    # test_shard_random_order draws, and teams, which test_shard_tensor_parallel has.
    list(APPEND FSDP_EXCEPT test_comm_collectives test_comm_machines test_comm_packed test_shard_joint
         test_shard_lifetimes test_shard_nesting test_shard_saved_orders)
    # The threads of a run are those of its step, of its saver and of its digest, whatever it trains, on what rows and
    # by which optimizer, and whatever it tells.
    list(APPEND FSDP_EXCEPT test_train_adapter test_train_adapter_reference test_train_attention_kernels
         test_train_context_parallel test_train_ddp_buckets test_train_disk_needs test_train_dpo test_train_dpo_validation
         test_train_early_stop
         test_train_ema test_train_export test_train_float16 test_train_groups test_train_histograms
         test_train_late_sharding test_train_metrics_places test_train_mixture test_train_warnings test_train_optimizers
         test_train_replay test_train_resume test_train_resume_matrix test_train_resume_worlds
         test_train_rewards test_train_rows test_train_samples
         test_train_strategy test_train_teams test_train_text_data test_train_traced_steps test_train_units
         test_train_validation)
    set(FSDP_EXCEPT_LAYERS ${fsdp_test_folders})
    list(REMOVE_ITEM FSDP_EXCEPT_LAYERS backend device comm watch shard data checkpoint train)
  endif()
elseif(FSDP_SANITIZE AND NOT FSDP_TEST_LONG)
  # The same program again, killed, told or watched at one moment or another, by another starter, or over many machines.
  # test_cli_devices, _nccl, _plan: leaks are looked for in all memory, and that of a GPU that is not there cannot be read.
  set(FSDP_EXCEPT test_comm_stuck test_cli_compare test_cli_devices test_cli_eval test_cli_eval_pairs test_cli_nccl test_cli_plan test_cli_progress test_cli_restarts test_cli_starters
      test_cli_stopped test_faults_compare test_faults_descriptors test_faults_resume test_launch_by_name
      test_launch_descriptors)
  # Much of the same: every character, every cut, runs that are there for their numbers.
  list(APPEND FSDP_EXCEPT test_backend_codes test_backend_gpu test_backend_values test_nn_gpu test_shard_cuda_faults)
  list(APPEND FSDP_EXCEPT test_tokenizer_unicode test_checkpoint_power_cut test_train_reference test_train_replay
       test_train_adapter_reference)
  # The same cuts are made by test_hub_power_cut, saves of teams by test_checkpoint_resume and random trees.
  list(APPEND FSDP_EXCEPT test_checkpoint_tensor_parallel test_format_power_cut)
  # What a run tells while it trains, beside test_train_samples and the suites of watch.
  list(APPEND FSDP_EXCEPT test_train_exposed test_train_traced_steps test_train_histograms)
  # Runs by one optimizer or another, whose code tests/optim runs, and pairs, which test_train_dpo_validation trains on.
  list(APPEND FSDP_EXCEPT test_train_dpo test_train_groups test_train_optimizers)
  # Runs by one strategy, way to cut a model or kernel or another: what they are made of has own suites in shard,
  # parallel, ops and models, and test_train_teams, _resume, _adapter and _rows run as much of src/train.
  list(APPEND FSDP_EXCEPT test_train_attention_kernels test_train_context_parallel test_train_ddp_buckets
       test_train_float16 test_train_late_sharding test_train_warnings test_train_resume_worlds test_train_scheduled_units test_train_strategy
       test_train_units test_train_validation)
  # What is counted in calls, bytes and memory, or compared with real ranks: random orders and trees take the steps.
  list(APPEND FSDP_EXCEPT test_compare_memory test_explain_exact test_shard_communication test_shard_events
       test_shard_memory test_shard_schedule)
  # What is sharded in another way, which random orders and trees draw.
  list(APPEND FSDP_EXCEPT test_shard_extensions test_shard_flat test_shard_fsdp1 test_shard_hybrid
       test_shard_mixed_precision test_shard_slices test_shard_unused test_shard_zero)
  # Ranks that stand still for long, which test_comm_machines_faults, _watchdog and _stopped have as well.
  list(APPEND FSDP_EXCEPT test_comm_machines_stalls)
  # Calls by NCCL and by peers' memory, which test_comm_nccl_buffers, _nccl_faults and _peer_faults make as well.
  list(APPEND FSDP_EXCEPT test_comm_nccl test_comm_peer)
  # The program a hundred times, for what it says: its parser of lines is fuzzed, and explain and plan have own suites.
  # And commands that others give with other words.
  list(APPEND FSDP_EXCEPT test_cli_adapter test_cli_folders test_cli_generate_folders test_cli_report test_cli_teams
       test_cli_usage)
  # Names that another user swaps, moment after moment; each boundary at which a save is killed.
  list(APPEND FSDP_EXCEPT test_checkpoint_crash test_checkpoint_processes test_faults_other_user)
  # Single calls and orders that test_comm_random_calls and random orders draw, bytes that are counted, and mixtures of
  # test_data_mixture in a run.
  list(APPEND FSDP_EXCEPT test_comm_collectives test_comm_fake_machines test_shard_gather_ahead test_shard_pending
       test_train_mixture)
  set(FSDP_EXCEPT_LAYERS cluster)
endif()

if(FSDP_SANITIZE)  # which a thread that forks would confuse
  list(APPEND FSDP_EXCEPT test_comm_rank_processes)
endif()

# On these GPUs that are not there ranks exchange by each other's memory and by NCCL, too, as <test>.peer and <test>.nccl;
# with FSDP_TEST_LONG in all tests above.
set(FSDP_CARRIER_TESTS test_shard_random_tree)

# Of shard's the ranks are processes, too, each with a CUDA of its own, as <test>.<carrier>.processes: they share a GPU by
# each carrier (which NCCL lets them), and have two by peer. Left out are those that choose their GPUs or plant races
# themselves, and without FSDP_TEST_LONG all but one. No sanitizer watches.
set(FSDP_PROCESSES_EXCEPT test_shard_common_gpu test_shard_races)
set(FSDP_PROCESSES_TESTS test_shard_groups)

function(fsdp_test_as_processes name layer)
  if(NOT layer STREQUAL "shard" OR NOT TARGET fsdp_test_cuda OR FSDP_SANITIZE OR name IN_LIST FSDP_SIM_EXCEPT OR
     name IN_LIST FSDP_PROCESSES_EXCEPT OR NOT (FSDP_TEST_LONG OR name IN_LIST FSDP_PROCESSES_TESTS))
    return()
  endif()
  foreach(way "peer;1" "peer;2" "nccl;1" "staged;1")
    list(GET way 0 carrier)
    list(GET way 1 gpus)
    set(test ${name}.${carrier}.processes)
    if(gpus EQUAL 2)
      set(test ${name}.${carrier}.2gpus)
    endif()
    if(FSDP_TEST_LONG OR carrier STREQUAL "peer")
      add_test(NAME ${test} COMMAND ${ARGN})
      fsdp_test_properties(${test} ${layer})
      set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT FSDP_TEST_RANKS=processes FSDP_TEST_DEVICE=cuda
                   FSDP_TEST_CARRIER=${carrier} FSDP_FAKECUDA_DEVICES=${gpus} NCCL_MULTI_RANK_GPU_ENABLE=1
                   FSDP_ORDER_COUNT=200 FSDP_TEAM_ORDERS_COUNT=50 FSDP_TREE_COUNT=100 FSDP_TEAMS_COUNT=50)
    endif()
  endforeach()
endfunction()

# Registers <name>.sim and <name>.cuda of the test that this command runs.
function(fsdp_test_on_devices name layer)
  if(NOT layer IN_LIST FSDP_SIM_LAYERS OR name IN_LIST FSDP_SIM_EXCEPT)
    return()
  endif()
  set(devices)
  if(NOT layer IN_LIST FSDP_SIM_FEW_LAYERS OR name IN_LIST FSDP_SIM_FEW)
    list(APPEND devices sim)
  endif()
  if(TARGET fsdp_test_cuda AND layer IN_LIST FSDP_FAKE_LAYERS AND NOT name IN_LIST FSDP_FAKE_EXCEPT AND
     (FSDP_TEST_LONG OR "sim" IN_LIST devices))
    list(APPEND devices cuda)
  endif()
  foreach(device IN LISTS devices)
    add_test(NAME ${name}.${device} COMMAND ${ARGN})
    fsdp_test_properties(${name}.${device} ${layer})
    set_property(TEST ${name}.${device} APPEND PROPERTY ENVIRONMENT FSDP_TEST_DEVICE=${device})
    if(device STREQUAL "cuda" AND NOT FSDP_TEST_LONG)
      set_property(TEST ${name}.${device} APPEND PROPERTY ENVIRONMENT FSDP_ORDER_COUNT=3 FSDP_TEAM_ORDERS_COUNT=2
                   FSDP_TREE_COUNT=3 FSDP_TEAMS_COUNT=2)
    endif()
  endforeach()
  if("cuda" IN_LIST devices AND (name IN_LIST FSDP_CARRIER_TESTS OR FSDP_TEST_LONG))
    foreach(carrier peer nccl)
      add_test(NAME ${name}.${carrier} COMMAND ${ARGN})
      fsdp_test_properties(${name}.${carrier} ${layer})
      set_property(TEST ${name}.${carrier} APPEND PROPERTY ENVIRONMENT FSDP_TEST_DEVICE=cuda FSDP_TEST_CARRIER=${carrier}
                   NCCL_MULTI_RANK_GPU_ENABLE=1)
      if(carrier STREQUAL "peer" AND layer STREQUAL "shard")  # whose ranks share a GPU, and its memory
        set_property(TEST ${name}.${carrier} APPEND PROPERTY ENVIRONMENT FSDP_FAKECUDA_DEVICES=1)
      endif()
      if(NOT FSDP_TEST_LONG)
        set_property(TEST ${name}.${carrier} APPEND PROPERTY ENVIRONMENT FSDP_TREE_COUNT=2 FSDP_TEAMS_COUNT=2)
      endif()
    endforeach()
  endif()
endfunction()

# Of these the ranks are on two machines, too (FSDP_TEST_MACHINES in tests/support/ranks.h), as <test>.2machines; of
# some on three. With FSDP_TEST_LONG that holds of every test of the layers above, but for those of what one machine's
# memory or watchdog does.
set(FSDP_2_MACHINES_TESTS test_checkpoint_resume test_comm_failure test_comm_group
    test_dist_redistribute test_optim_clip test_optim_partition test_optim_sharded test_shard_batch_norm test_shard_cast
    test_shard_comm_hooks test_shard_faults test_shard_groups test_shard_memory
    test_shard_overlap test_shard_parity test_shard_random_order test_shard_random_tree
    test_state_full test_train_scheduled_units test_train_step test_train_zero1)
set(FSDP_3_MACHINES_TESTS test_checkpoint_resume test_comm_group test_optim_sharded test_shard_batch_norm
    test_shard_random_tree test_shard_slices)
if(FSDP_TEST_LONG)
  list(APPEND FSDP_2_MACHINES_TESTS test_parallel_collectives)
endif()
if(FSDP_SANITIZE) # they are slow: so many that the code of machines is seen
  set(FSDP_2_MACHINES_TESTS test_comm_group test_shard_cast)
  set(FSDP_3_MACHINES_TESTS)
endif()
set(FSDP_ONE_MACHINE test_comm_board test_comm_handoff test_comm_machines test_comm_machines_faults
    test_comm_machines_join test_comm_packed test_comm_places test_comm_races test_comm_random_calls test_comm_readers
    test_comm_signature test_comm_stopped test_comm_watchdog)

# Registers <name>.2machines and <name>.3machines, likewise.
function(fsdp_test_on_machines name layer)
  foreach(machines 2 3)
    set(all ${FSDP_TEST_LONG})
    if(NOT layer MATCHES "^(checkpoint|comm|dist|optim|shard|state|train)$" OR name IN_LIST FSDP_ONE_MACHINE)
      set(all OFF)
    endif()
    if(NOT all AND NOT name IN_LIST FSDP_${machines}_MACHINES_TESTS)
      continue()
    endif()
    add_test(NAME ${name}.${machines}machines COMMAND ${ARGN})
    fsdp_test_properties(${name}.${machines}machines ${layer})
    set_property(TEST ${name}.${machines}machines APPEND PROPERTY ENVIRONMENT FSDP_TEST_MACHINES=${machines})
    if(NOT all)
      set_property(TEST ${name}.${machines}machines APPEND PROPERTY ENVIRONMENT FSDP_ORDER_COUNT=6 FSDP_TREE_COUNT=6)
    endif()
  endforeach()
endfunction()

# A script, and of the cluster's these a second time, over MPICH, as <test>.mpich.
set(FSDP_MPICH_TESTS test_cluster_machines)
if(FSDP_TEST_LONG)
  list(APPEND FSDP_MPICH_TESTS test_cluster_collectives test_cluster_failures test_cluster_train)
endif()
function(fsdp_test_script name layer script)
  add_test(NAME ${name} COMMAND bash ${script})
  fsdp_test_properties(${name} ${layer})
  if(layer STREQUAL "cluster")
    # Many ranks on the cores of one machine, a case after another, and long waits for what is started. So they come
    # first, two at a time, and the others beside them.
    list(LENGTH fsdp_cluster_tests count)
    math(EXPR lane "${count} % 2")
    set_tests_properties(${name} PROPERTIES COST 100 RESOURCE_LOCK cluster_${lane})
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT FSDP_TEST_SECONDS=${FSDP_TEST_TIMEOUT})
    list(APPEND fsdp_cluster_tests ${name})
  endif()
  set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT FSDP=${test_dir}/fsdp
               FSDP_BUILD=${PROJECT_BINARY_DIR} FSDP_SOURCE=${PROJECT_SOURCE_DIR} ${ARGN})
  if(name IN_LIST FSDP_MPICH_TESTS)
    fsdp_test_script(${name}.mpich ${layer} ${script} MACHINES_MPI=mpich)
  endif()
  set(fsdp_cluster_tests ${fsdp_cluster_tests} PARENT_SCOPE)
endfunction()

# Programs of their own: they have calls of the C library themselves (pthread_create, those of tests/support/disk.h),
# which would hide the other tests' from a sanitizer.
set(FSDP_TEST_ALONE test_backend_threads test_checkpoint_power_cut test_format_power_cut test_hub_power_cut)

foreach(layer IN LISTS fsdp_test_folders)
  if(layer IN_LIST FSDP_EXCEPT_LAYERS)
    continue()
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${layer}/test_*.c)
  set(files)
  foreach(source IN LISTS sources)
    get_filename_component(file ${source} NAME_WE)
    string(REGEX REPLACE "^test_" "" file ${file})
    set(name test_${layer}_${file})
    if(name IN_LIST FSDP_EXCEPT)
      continue()
    endif()
    if(name IN_LIST FSDP_TEST_ALONE)
      set(command ${name} ${file})
      fsdp_test_executable(${name} ${layer} ${source})
    else()
      set(command test_${layer} ${file})
      list(APPEND files ${source})
    endif()
    add_test(NAME ${name} COMMAND ${command})
    fsdp_test_properties(${name} ${layer})
    fsdp_test_on_devices(${name} ${layer} ${command})
    fsdp_test_as_processes(${name} ${layer} ${command})
    fsdp_test_on_machines(${name} ${layer} ${command})
  endforeach()
  if(files)
    fsdp_test_executable(test_${layer} ${layer} ${files})
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${layer}/program_*.c)
  foreach(source IN LISTS sources)
    get_filename_component(name ${source} NAME_WE)
    fsdp_test_executable(${name} ${layer} ${source})
    if(TARGET test_${layer})  # which starts it
      add_dependencies(test_${layer} ${name})
    endif()
  endforeach()
  file(GLOB scripts CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${layer}/test_*.sh)
  foreach(script IN LISTS scripts)
    get_filename_component(file ${script} NAME_WE)
    string(REPLACE "test_" "test_${layer}_" name ${file})
    if(name IN_LIST FSDP_EXCEPT)
      continue()
    endif()
    fsdp_test_script(${name} ${layer} ${script})
  endforeach()
endforeach()

if(TARGET test_data)
  add_dependencies(test_data fakearrow)
endif()
foreach(program test_comm test_shard test_train test_watch)
  if(TARGET ${program} AND FSDP_CUDA_HEADERS)
    target_link_libraries(${program} PRIVATE fakecudart)
  endif()
endforeach()

if(TARGET program_planted)
  target_sources(program_planted PRIVATE ${cudash}/launch_now.cpp ${cudash}/thread.c ${cudash}/test_planted.cu
                                         $<FILTER:$<TARGET_OBJECTS:fsdp_test_cudash>,INCLUDE,/cudash/>)
  target_link_libraries(program_planted PRIVATE fsdp_cudash_common)
endif()
if(TARGET test_backend)
  target_sources(test_backend PRIVATE ${cudash}/launch_now.cpp ${cudash}/thread.c ${kernels}
                                      ${PROJECT_SOURCE_DIR}/src/backend/cuda/kernels_table.c
                                      ${PROJECT_SOURCE_DIR}/src/backend/cuda/libraries.c
                                      ${PROJECT_SOURCE_DIR}/src/backend/cuda/product_call.c
                                      ${PROJECT_SOURCE_DIR}/src/backend/cuda/product_rows.c
                                      ${PROJECT_SOURCE_DIR}/src/backend/cuda/attention_graph.c
                                      ${PROJECT_SOURCE_DIR}/src/backend/cuda/cudnn_calls.c
                                      ${PROJECT_SOURCE_DIR}/src/backend/cuda/cudnn_graph.c
                                      ${PROJECT_SOURCE_DIR}/src/backend/cuda/nccl_calls.c)
  # A driver for the real cuDNN, which is not beside the tests: nothing else finds it.
  add_library(fakedriver MODULE ${fake}/fake_driver.c)
  target_link_libraries(fakedriver PRIVATE fsdp_common)
  set_target_properties(fakedriver PROPERTIES OUTPUT_NAME cuda SUFFIX .so.1 LIBRARY_OUTPUT_DIRECTORY ${test_dir}/driver)
  target_link_options(fakedriver PRIVATE -Wl,-soname,libcuda.so.1)
  add_dependencies(test_backend fakedriver)
  target_compile_definitions(test_backend PRIVATE FSDP_FAKE_DRIVER="${test_dir}/driver/libcuda.so.1")
  target_link_libraries(test_backend PRIVATE fsdp_test_cudash)
  if(FSDP_CUDA_HEADERS)
    target_link_libraries(test_backend PRIVATE fakecudart)
  endif()
endif()

file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/faults/preload_*.c)
foreach(source IN LISTS sources)
  get_filename_component(name ${source} NAME_WE)
  add_library(${name} MODULE ${source})
  target_link_libraries(${name} PRIVATE ${CMAKE_DL_LIBS})
  set_target_properties(${name} PROPERTIES PREFIX "" C_VISIBILITY_PRESET default
                                           LIBRARY_OUTPUT_DIRECTORY ${test_dir})
  foreach(program test_faults test_cli)
    if(TARGET ${program})
      add_dependencies(${program} ${name})
    endif()
  endforeach()
endforeach()

foreach(plugin IN LISTS fsdp_mpi_plugins)
  string(REPLACE "fsdp_" "preload_stuck_" name ${plugin})
  add_library(${name} MODULE ${PROJECT_SOURCE_DIR}/tests/comm/preload_stuck.c)
  target_compile_options(${name} PRIVATE $<TARGET_PROPERTY:${plugin},COMPILE_OPTIONS>)
  target_link_libraries(${name} PRIVATE $<TARGET_PROPERTY:${plugin},LINK_LIBRARIES>)
  set_target_properties(${name} PROPERTIES PREFIX "" C_VISIBILITY_PRESET default
                                           LIBRARY_OUTPUT_DIRECTORY ${test_dir})
endforeach()

file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/comm/plugin_*.c)
foreach(source IN LISTS sources)
  get_filename_component(name ${source} NAME_WE)
  add_library(${name} MODULE ${source})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  string(REPLACE "plugin_" "libfsdp-" file ${name})
  set_target_properties(${name} PROPERTIES PREFIX "" OUTPUT_NAME ${file} LIBRARY_OUTPUT_DIRECTORY ${test_dir})
endforeach()

file(GLOB scripts CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/tools/test_*.sh)
if(FSDP_SANITIZE)  # of scripts, which run programs that other tests run
  set(scripts)
endif()
foreach(script IN LISTS scripts)
  get_filename_component(file ${script} NAME_WE)
  string(REPLACE "test_" "tools_" name ${file})
  add_test(NAME ${name} COMMAND bash ${script})
  fsdp_test_properties(${name} tools)
  set_tests_properties(${name} PROPERTIES COST 50)  # none is the last
  set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT FSDP_BUILD=${PROJECT_BINARY_DIR}
                                                        FSDP_SOURCE=${PROJECT_SOURCE_DIR})
endforeach()

# ---- fuzzers: a program each under libFuzzer (FSDP_FUZZ), else one with a driver that any compiler builds ----

function(fsdp_fuzz_executable name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE fsdp_static fsdp_common)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${test_dir})
endfunction()

set(FSDP_FUZZ_RUNS 2000 CACHE STRING "random mutations a fuzz test tries")
file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/fuzz/fuzz_*.c)
set(fuzzers)
foreach(source IN LISTS sources)
  get_filename_component(name ${source} NAME_WE)
  if(FSDP_FUZZ)
    fsdp_fuzz_executable(${name} ${source})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  elseif(NOT FSDP_SANITIZE MATCHES "thread") # parsers have one
    string(REPLACE "fuzz_" "" subject ${name})
    set_source_files_properties(${source} PROPERTIES COMPILE_DEFINITIONS LLVMFuzzerTestOneInput=${name})
    string(APPEND fuzzers " FUZZER(${subject})")
    set(runs ${FSDP_FUZZ_RUNS})
    if(subject STREQUAL "flight" AND NOT FSDP_TEST_LONG)  # each reads a large record three times
      math(EXPR runs "${runs} / 4")
    endif()
    add_test(NAME ${name} COMMAND fuzz ${subject} ${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${subject} ${runs})
    fsdp_test_properties(${name} fuzz)
  endif()
endforeach()
if(fuzzers)
  fsdp_fuzz_executable(fuzz ${sources} ${PROJECT_SOURCE_DIR}/tests/fuzz/driver.c)
  set_source_files_properties(${PROJECT_SOURCE_DIR}/tests/fuzz/driver.c PROPERTIES COMPILE_DEFINITIONS
                              "FUZZERS=${fuzzers}")
endif()

# ---- examples see what a user sees: the public headers and the shared library ----

file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/*.c)
if(FSDP_SANITIZE AND NOT FSDP_TEST_LONG)  # what they do tests do, too
  set(sources)
  if(TARGET fsdp)  # tests start fsdp_checked
    set_target_properties(fsdp fsdp_shared PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endif()
add_custom_target(examples)

function(fsdp_example_test name)
  set(folder ${PROJECT_BINARY_DIR}/examples/run/${name})
  file(MAKE_DIRECTORY ${folder})
  add_test(NAME ${name} COMMAND ${ARGN} WORKING_DIRECTORY ${folder})
  fsdp_test_properties(${name} examples)
endfunction()

foreach(source IN LISTS sources)
  get_filename_component(file ${source} NAME_WE)
  set(name example_${file})
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE fsdp_shared m)
  add_dependencies(examples ${name})
  set_target_properties(${name} PROPERTIES OUTPUT_NAME ${file} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/examples)
  fsdp_example_test(${name} ${name})
  file(STRINGS ${source} run REGEX "fsdp run -n [0-9]+" LIMIT_COUNT 1)
  if(run AND TARGET fsdp)
    string(REGEX REPLACE ".*fsdp run -n ([0-9]+).*" "\\1" ranks "${run}")
    fsdp_example_test(${name}_${ranks}_ranks fsdp run -n ${ranks} -- $<TARGET_FILE:${name}>)
  endif()
endforeach()

# The one for a GPU; without one its functions compute on the processor.
if(TARGET fsdp_cuda)
  set(name example_11_own_kernel)
  set(source ${PROJECT_SOURCE_DIR}/examples/11_own_kernel.cu)
  set(program ${PROJECT_BINARY_DIR}/examples/11_own_kernel)
  add_custom_command(
    OUTPUT ${program}
    COMMAND ${FSDP_NVCC} -std=c++17 -O2 -arch=sm_${FSDP_CUDA_OLDEST} -I${PROJECT_SOURCE_DIR}/include ${source} -o ${program}
            -L${PROJECT_BINARY_DIR} -lfsdp -Xlinker -rpath=${PROJECT_BINARY_DIR}
    DEPENDS ${source} fsdp_shared
    COMMENT "Building CUDA example 11_own_kernel"
    VERBATIM)
  add_custom_target(${name} ALL DEPENDS ${program})
  fsdp_example_test(${name} ${program})
endif()

# ---- the installed library, as another project finds it ----

if(TARGET fsdp AND NOT FSDP_SANITIZE)
  add_test(NAME install COMMAND ${PROJECT_SOURCE_DIR}/tools/test_install.sh ${PROJECT_BINARY_DIR})
  fsdp_test_properties(install examples)
endif()

# Plug-ins of MPI (src/comm/mpi/plugin): libfsdp-openmpi.so and libfsdp-mpich.so, each where its MPI is found by its
# compiler wrapper. Nothing else is linked to MPI; -DFSDP_MPI=OFF leaves them out. Sets
#   fsdp_plugins, fsdp_mpi_plugins   their targets; other plug-ins are added to the first

option(FSDP_MPI "build the plug-ins for the MPIs that are found" ON)
set(fsdp_plugins)

# fsdp_mpi_ask(OUT question wrapper...): what the first of these wrappers answers that knows the question.
function(fsdp_mpi_ask out question)
  set(${out} "" PARENT_SCOPE)
  foreach(name IN LISTS ARGN)
    execute_process(COMMAND ${name} ${question} RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_QUIET
                    OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(failed STREQUAL "0")  # else a number, or that there is no such program
      set(${out} "${said}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# fsdp_mpi_plugin(name title compile link): what the wrapper adds to compile and link commands.
function(fsdp_mpi_plugin name title compile link)
  if(compile STREQUAL "" OR link STREQUAL "")
    message(STATUS "src/comm/mpi: no plug-in for ${title}, which was not found")
    return()
  endif()
  separate_arguments(compile UNIX_COMMAND "${compile}")
  separate_arguments(link UNIX_COMMAND "${link}")
  list(FILTER link EXCLUDE REGEX "^(-I|[^-])")   # MPICH's wrapper answers with the compiler in front
  list(FILTER compile INCLUDE REGEX "^-[ID]")
  list(TRANSFORM compile REPLACE "^-I" "-isystem")
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/comm/mpi/plugin/*.c)
  add_library(fsdp_${name} MODULE ${sources})
  target_include_directories(fsdp_${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_compile_options(fsdp_${name} PRIVATE ${compile})
  target_link_libraries(fsdp_${name} PRIVATE ${link} Threads::Threads)
  set_target_properties(fsdp_${name} PROPERTIES OUTPUT_NAME fsdp-${name} PREFIX lib SUFFIX .so
                                                LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  install(TARGETS fsdp_${name} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/fsdp)
  message(STATUS "src/comm/mpi: plug-in for ${title}")
  set(fsdp_plugins ${fsdp_plugins} fsdp_${name} PARENT_SCOPE)
endfunction()

if(FSDP_MPI)
  fsdp_mpi_ask(compile --showme:compile mpicc.openmpi mpicc)
  fsdp_mpi_ask(link --showme:link mpicc.openmpi mpicc)
  fsdp_mpi_plugin(openmpi "Open MPI" "${compile}" "${link}")
  fsdp_mpi_ask(compile -compile_info mpicc.mpich mpicc)
  fsdp_mpi_ask(link -link_info mpicc.mpich mpicc)
  fsdp_mpi_plugin(mpich MPICH "${compile}" "${link}")
endif()

set(fsdp_mpi_plugins ${fsdp_plugins})

# Where the library looks for plug-ins once it is installed: from bin/, and by their full name.
file(RELATIVE_PATH from_program ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR}/fsdp)
set_source_files_properties(${PROJECT_SOURCE_DIR}/src/base/find_plugin.c PROPERTIES COMPILE_DEFINITIONS
  "FSDP_PLUGINS_FROM_PROGRAM=\"${from_program}\";FSDP_PLUGINS_INSTALLED=\"${CMAKE_INSTALL_FULL_LIBDIR}/fsdp\"")

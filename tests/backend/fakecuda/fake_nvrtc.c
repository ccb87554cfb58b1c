/* fake_nvrtc.c - libnvrtc.so.13 beside the tests, which is opened before cuDNN needs it. */
__attribute__((visibility("default"))) int nvrtcVersion(int *major, int *minor);
int nvrtcVersion(int *major, int *minor)
{
    *major = 13;
    *minor = 0;
    return 0;
}

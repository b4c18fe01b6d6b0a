"""The control loop's shell: leadership, observing, forecasting, deciding, acting, each at its own pace."""

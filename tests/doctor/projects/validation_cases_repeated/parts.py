from torch.utils.data import DataLoader, DistributedSampler

from template.data.dataset import collate_by_shape
from template.data.phantom import Phantom


class Broken(Phantom):
    def share(self, dataset):
        return DistributedSampler(dataset, self.trainer.world_size, self.trainer.global_rank, shuffle=False)

    def val_dataloader(self):
        dataset = self._dataset(self.cases("val"), None)
        return DataLoader(dataset, batch_size=2, sampler=self.share(dataset), collate_fn=collate_by_shape)


class Healthy(Broken):
    def share(self, dataset):
        return range(self.trainer.global_rank, len(dataset), self.trainer.world_size)
